"""Which plans are legal: the rules of tensor shapes, groups, schedules, and of the stack.

Each rule raises InputError with the value, the rule and the legal values near by. The product
rule itself stands in spec.plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gangsaw.errors import InputError
from gangsaw.spec import LayerKind, ModelSpec, Plan
from gangsaw.spec.job import Job
from gangsaw.spec.plan import OWN_FILES, SCHEDULES

ONE_CHUNK = ("gpipe", "1f1b", "zb-h1", "zb-h2", "dualpipe")
V_CHUNKS = ("zb-v", "v-half", "v-min", "dualpipe-v")
LOOPED = ("interleaved", "bfs", "izb")


def divisors(n: int, limit: int | None = None) -> list[int]:
    """All divisors of n up to `limit`, ascending."""
    low = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    found = sorted({*low, *(n // d for d in low)})
    return [d for d in found if limit is None or d <= limit]


def _choices(values: list[int]) -> str:
    shown = values if len(values) <= 12 else [*values[:11], values[-1]]
    return ", ".join(map(str, shown)) or "none"


def all_kinds(model: ModelSpec) -> Iterator[LayerKind]:
    """Decoder kinds and that of multi-token prediction; the tower has rules of its own."""
    yield from model.kinds
    if model.mtp is not None:
        yield model.mtp.kind


def tp_divides(model: ModelSpec, tp: int) -> str | None:
    """The first reason why TP cannot split the model's matrices, or None."""
    for kind in all_kinds(model):
        a = kind.attention
        if a.heads % tp:
            return f"num_attention_heads={a.heads}"
        if not a.is_mla and a.kv_heads % tp and tp % a.kv_heads:
            return f"num_key_value_heads={a.kv_heads} (whole heads, or whole copies of a head)"
        if kind.mlp is not None and kind.mlp.ffn % tp:
            return f"intermediate_size={kind.mlp.ffn}"
        if kind.moe is not None and kind.moe.shared is not None and kind.moe.shared.ffn % tp:
            return f"shared expert width {kind.moe.shared.ffn}"
    if model.vision is not None and model.vision.kind.attention.heads % tp:
        # Frameworks run the tower without tensor parallelism where its heads do not divide.
        return None
    return None


def legal_tp(model: ModelSpec, limit: int = 1024) -> list[int]:
    """TP degrees that split the model's heads and matrices."""
    heads = model.kinds[0].attention.heads
    return [t for t in divisors(heads, limit) if tp_divides(model, t) is None]


def check_shapes(model: ModelSpec, plan: Plan, seq_len: int) -> None:
    """Rules about the model's shapes: heads, widths, sequence, experts."""
    reason = tp_divides(model, plan.tp)
    if reason:
        raise InputError(
            f"tp={plan.tp} does not divide {reason}. Legal here: {_choices(legal_tp(model))}"
        )
    if plan.cp > 1 and seq_len % (2 * plan.cp):
        legal = [c for c in divisors(seq_len, 256) if seq_len % (2 * c) == 0]
        raise InputError(
            f"cp={plan.cp}: sequence length {seq_len} must divide by 2 x cp = {2 * plan.cp}"
            f" (balanced causal halves). Legal here: {_choices(legal)}"
        )
    if plan.tp > 1 and plan.sequence_parallel and seq_len % (plan.tp * plan.cp):
        raise InputError(
            f"sequence parallelism needs sequence length {seq_len} to divide by"
            f" tp x cp = {plan.tp} x {plan.cp} = {plan.tp * plan.cp};"
            " choose another tp or --no-sequence-parallel"
        )
    moes = [k.moe for k in model.kinds if k.moe is not None]
    if not moes:
        if plan.ep > 1 or plan.etp > 1:
            raise InputError(
                f"ep={plan.ep}, etp={plan.etp}: {model.name} has no experts. Legal here: 1"
            )
        return
    for moe in moes:
        if moe.experts % plan.ep:
            raise InputError(
                f"ep={plan.ep} does not divide num_experts={moe.experts}."
                f" Legal here: {_choices(divisors(moe.experts))}"
            )
        if moe.expert.ffn % plan.etp:
            raise InputError(
                f"etp={plan.etp} does not divide moe_intermediate_size={moe.expert.ffn}."
                f" Legal here: {_choices(divisors(moe.expert.ffn, 64))}"
            )


def check_schedule(model: ModelSpec, plan: Plan, stack: str) -> None:
    """Rules about chunks, microbatches and the schedule."""
    name = plan.schedule
    if not name.startswith(OWN_FILES) and name not in SCHEDULES:
        raise InputError(f"schedule={name!r}: unknown. Legal: {', '.join(SCHEDULES)}, file:PATH")
    if plan.pp == 1 and plan.vpp > 1 and name in V_CHUNKS:
        raise InputError(f"schedule={name} needs a pipeline: pp > 1, not 1. Legal with pp=1: 1f1b")
    if plan.pp == 1 and plan.vpp > 1:
        raise InputError(f"vpp={plan.vpp} needs pp > 1; with pp=1 the legal value is 1")
    if plan.pp > 1 and name in ONE_CHUNK and plan.vpp > 1:
        raise InputError(
            f"schedule={name} runs one chunk a rank, not vpp={plan.vpp}."
            f" Legal with chunks: {', '.join(LOOPED)}"
        )
    if plan.pp > 1 and name in V_CHUNKS and plan.vpp != 2:
        raise InputError(f"schedule={name} runs two chunks a rank: vpp=2, not {plan.vpp}")
    if plan.pp > 1 and name == "interleaved" and plan.vpp == 1:
        raise InputError("schedule=interleaved needs vpp > 1; with vpp=1 it is 1f1b")
    if name == "dualpipe" and plan.pp % 2:
        raise InputError(f"schedule=dualpipe needs an even pp, not {plan.pp}")
    if name in ("dualpipe", "dualpipe-v") and plan.num_microbatches < 2 * plan.pp:
        raise InputError(
            f"schedule={name} needs num_microbatches >= 2 x pp = {2 * plan.pp},"
            f" not {plan.num_microbatches}"
        )
    if name == "dualpipe" and plan.num_microbatches % 2:
        raise InputError(
            f"schedule=dualpipe needs an even num_microbatches, half for each direction, not"
            f" {plan.num_microbatches}"
        )
    megatron = stack.startswith(("megatron", "zero-bubble"))
    if name == "interleaved" and plan.pp > 1 and megatron and plan.num_microbatches % plan.pp:
        raise InputError(
            f"num_microbatches={plan.num_microbatches} must be a multiple of pp={plan.pp}"
            f" for interleaved schedules in Megatron (stack {stack})"
        )
    check_stages(model, plan.pp, plan.vpp, plan.stages)


def check_stages(model: ModelSpec, pp: int, vpp: int, stages: Sequence[int] | None) -> None:
    """Whether the layers can be laid out over pp x vpp chunks: as stated, or by the search.

    Embedding and loss head may have a chunk of their own, so two chunks may hold no layer.
    """
    chunks, layers = pp * vpp, model.layers
    most = layers + (2 if pp > 1 else 0)
    if stages is None and chunks > most:
        raise InputError(
            f"pp x vpp = {pp} x {vpp} = {chunks} chunks for {layers} layers of {model.name}."
            f" Legal: at most {most}"
        )
    if stages is not None and sum(stages) != layers:
        raise InputError(
            f"stages sum to {sum(stages)}, {model.name} has {layers} layers. Legal: {layers} in all"
        )


def check_plan(job: Job, plan: Plan) -> None:
    """Raise InputError for the first rule that the plan breaks."""
    plan.check_product(job.cluster.devices, job.recipe.global_batch)
    check_shapes(job.model, plan, job.recipe.seq_len)
    check_schedule(job.model, plan, job.stack.rules)
    group = plan.dp * plan.cp
    if plan.shard_group and group % plan.shard_group:
        raise InputError(
            f"shard_group={plan.shard_group} does not divide dp x cp = {group}."
            f" Legal here: {_choices(divisors(group))}"
        )
    if plan.recompute_layers and plan.recompute != "full":
        raise InputError(
            f"recompute_layers={plan.recompute_layers} needs recompute=full, not {plan.recompute}"
        )
