"""From flags to documents: Job, the fields of a Plan that were stated, and a whole Plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from gangsaw.cli import files, values
from gangsaw.cli import output as screen
from gangsaw.cli.flags import JobArgs, OutputFlags, PlanFlags, RecipeFlags, SiteRecipeFlags
from gangsaw.cost.layout import default_counts
from gangsaw.cost.legal import check_plan, check_shapes, check_stages
from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.toml import validate
from gangsaw.spec.job import Job
from gangsaw.spec.plan import AXES, OWN_FILES, SCHEDULES, Plan
from gangsaw.spec.recipe import Precision, Recipe, Task

if TYPE_CHECKING:
    from gangsaw.spec.cluster import ClusterSpec
    from gangsaw.spec.result import EstimateResult

DEFAULT_STACK = "unknown"
DEFAULT_SEQ_LEN = 4096
DEFAULT_BATCH_TOKENS = 2**22
DEGREES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs")
TWO_CHUNKS = ("zb-v", "v-half", "v-min", "dualpipe-v")
"""Schedules that fold the pipeline: exactly two chunks a rank."""
MANY_CHUNKS = ("interleaved", "bfs", "izb", "auto")
SCHEDULE_ALIASES = {
    "interleaved1f1b": "interleaved",
    "interleaved-1f1b": "interleaved",
    "loopedbfs": "bfs",
    "looped-bfs": "bfs",
    "interleavedzerobubble": "izb",
    "zbv": "zb-v",
    "zbvzerobubble": "zb-v",
    "zbh1": "zb-h1",
    "zbh2": "zb-h2",
    "dualpipev": "dualpipe-v",
    "one_f_one_b": "1f1b",
}
STALE = ("pipedream", "pipedream-2bw", "pipemare", "async", "local-sgd", "diloco")
"""Schemes that avoid waiting by training on old weights."""
_FILE_KEYS = (
    *DEGREES, "num_microbatches", "schedule", "recompute", "recompute_layers", "zero",
    "shard_group", "sequence_parallel", "offload_optimizer", "offload_activations", "offload",
    "stages", "rank_order",
)  # fmt: skip


def seed_of(flags: OutputFlags) -> int:
    """The seed of what is drawn at random; 0 when none was stated."""
    return 0 if flags.seed is None else values.whole("--seed", flags.seed, 0, 2**32 - 1)


def seq_len_of(text: str | None) -> int:
    """The sequence length, or the one that is assumed."""
    return DEFAULT_SEQ_LEN if text is None else values.whole("--seq-len", text, 1, 10**8)


def default_batch(seq_len: int, devices: int, fields: Mapping[str, Any] | None) -> int:
    """Sequences a step where none are stated: about 4M tokens that devices or the plan divide.

    The power of two times the odd part of the device count that is nearest, so that a search has
    all degrees; for the one plan that `fields` state, a multiple of its dp x mbs, or exactly its
    microbatches.
    """
    odd = devices // (devices & -devices)
    batch: int = odd << max(0, round(math.log2(DEFAULT_BATCH_TOKENS / seq_len / odd)))
    if fields is None:
        return batch
    tp, cp, pp, mbs = (int(fields.get(part, 1)) for part in ("tp", "cp", "pp", "mbs"))
    group = int(fields.get("dp", max(1, devices // (tp * cp * pp)))) * mbs
    if "num_microbatches" in fields:
        return group * int(fields["num_microbatches"])
    return group * max(1, round(batch / group)) if batch % group else batch


def recipe_from(
    flags: RecipeFlags,
    devices: int = 1,
    fields: Mapping[str, Any] | None = None,
    positions: int = 0,
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, and a line for each figure that was assumed and not stated.

    `devices`, `fields`: of the cluster and the plan, which an assumed batch must suit;
    `positions`: that the model has learned, which an assumed length stays within.
    """
    assumed: list[str] = []
    task = values.choice("--task", flags.task, get_args(Task)) if flags.task else "pretrain"
    if flags.lora_rank is not None and task not in ("lora", "qlora"):
        raise InputError(
            f"--lora-rank {flags.lora_rank} has no meaning with --task {task}."
            " Legal: --task lora or qlora, or no --lora-rank"
        )
    precision = "bf16"
    if flags.precision:
        precision = values.choice("--precision", flags.precision, get_args(Precision))
    seq_len = seq_len_of(flags.seq_len)
    if flags.seq_len is None:
        if 0 < positions < seq_len:
            seq_len = 1 << positions.bit_length() - 1
        assumed.append(f"--seq-len {seq_len}")
    if flags.global_batch is None:
        batch = default_batch(seq_len, devices, fields)
        assumed.append(f"--global-batch {batch}")
    else:
        batch = values.whole("--global-batch", flags.global_batch, 1, 10**8)
    recipe = Recipe.model_validate(
        {
            "seq_len": seq_len,
            "global_batch": batch,
            "precision": precision,
            "task": task,
            "lora_rank": values.whole("--lora-rank", flags.lora_rank or "16", 1, 65536),
            "tokens": values.tokens("--tokens", flags.tokens) if flags.tokens else None,
        }
    )
    return recipe, tuple(assumed)


def job_from(
    args: JobArgs, flags: RecipeFlags, fields: Mapping[str, Any] | None = None
) -> tuple[Job, tuple[str, ...]]:
    """The job that was stated, and notes on what was assumed.

    `fields`: of the one plan that is meant, to which an assumed batch is suited.
    """
    recipe_from(flags)
    from gangsaw.read.clusters import load_cluster
    from gangsaw.read.models import load_model
    from gangsaw.read.stacks import load_stack

    stack = load_stack(flags.stack or DEFAULT_STACK)
    cluster = load_cluster(args.cluster)
    if flags.prices is not None:
        cluster = priced(cluster, flags.prices)
    model = load_model(args.model)
    positions = model.learned_positions
    recipe, assumed = recipe_from(flags, cluster.devices, fields, positions)
    notes: tuple[str, ...] = (f"not stated, so assumed: {' '.join(assumed)}",) if assumed else ()
    if 0 < positions < recipe.seq_len:
        notes += (
            f"{model.name} has learned {positions:,} positions: {recipe.seq_len:,} tokens a"
            " sequence need a larger table, which is not counted",
        )
    job = Job(model=model, recipe=recipe, cluster=cluster, stack=stack)
    site = flags.site if isinstance(flags, SiteRecipeFlags) else None
    if site is not None:
        from gangsaw.cli.site_file import on_site

        job, more = on_site(job, site)
        notes += more
    return job, notes


def priced(cluster: ClusterSpec, path: str) -> ClusterSpec:
    """The cluster at the on-demand price of its devices in the user's price file."""
    from gangsaw.read.prices import device_hour_key, load_prices

    book = load_prices(path)
    names = (cluster.name.partition(":")[0], cluster.device.name)
    known = [n for n in names if book.has(f"device_hour.{n}.on-demand")]
    key = device_hour_key(book, known[0] if known else names[-1])
    figure = book.figures[key]
    return cluster.model_copy(
        update={
            "usd_per_device_hour": book.value(key, "USD/device-hour"),
            "price_source": figure.source,
            "price_as_of": figure.as_of,
        }
    )


def estimated(
    args: JobArgs, recipe: RecipeFlags, cut: PlanFlags, output: OutputFlags
) -> tuple[Job, EstimateResult]:
    """The job and the estimate of the one plan that the flags state."""
    seed_of(output)
    fields = plan_fields(cut, own=True)
    job, assumed = job_from(args, recipe, fields)
    plan = whole_plan(job, fields)
    from gangsaw.search.estimate import estimate

    result = estimate(job, plan)
    return job, result.model_copy(update={"notes": (*assumed, *result.notes)})


def _recompute(flag: str, text: str) -> dict[str, object]:
    kind, _, count = text.strip().lower().partition(":")
    legal = "Legal: none, selective, full, full:N"
    if kind not in ("none", "selective", "full") or (":" in text and kind != "full"):
        raise InputError(f"{flag} {text!r} is unknown. {legal}")
    layers = 0
    if ":" in text:
        try:
            layers = values.whole(flag, count, 1, 10**4)
        except InputError:
            raise InputError(
                f"{flag} {text!r}: N is a number of layers of each chunk, 1 to 10,000. {legal}"
            ) from None
    return {"recompute": kind, "recompute_layers": layers}


def _offload(flag: str, texts: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in (part for whole in texts for part in whole.split(",")):
        what, _, share = text.strip().lower().partition(":")
        if what not in ("optimizer", "activations"):
            raise InputError(
                f"{flag} {text!r} is unknown. Legal: optimizer, activations, optimizer:0.5"
            )
        key = f"offload_{what}"
        if key in found:
            raise InputError(f"{flag} names {what} twice. Legal: each once")
        try:
            found[key] = values.fraction(flag, share) if ":" in text else 1.0
        except InputError:
            raise InputError(
                f"{flag} {text!r}: the share is 0 to 1. Legal: such as {what}:0.5 or {what}:50%"
            ) from None
    return found


def _stages(flag: str, text: str) -> tuple[int, ...]:
    return tuple(values.whole(f"{flag} {text!r}:", part, 0, 10**5) for part in text.split(","))


def _schedule(flag: str, text: str, own: bool, fields: dict[str, object]) -> str:
    """The name of a schedule; a file of the user's own also states ranks and chunks."""
    name = text.strip().lower()
    if name.startswith("file:"):
        if not own:
            raise InputError(
                f"{flag} {text!r}: a schedule file is for estimate, bill and timeline."
                f" Legal here: {', '.join(SCHEDULES)}"
            )
        from gangsaw.search.own_schedule import stated_by

        stated = stated_by(text.strip()[len("file:") :])
        fields.setdefault("pp", stated.pp)
        fields.setdefault("vpp", stated.vpp)
        return stated.name
    if name in STALE:
        raise InputError(
            f"{flag} {text!r} computes gradients on old weights: another training, not another"
            f" schedule of this one. Legal: {', '.join(SCHEDULES)}"
        )
    return values.choice(flag, SCHEDULE_ALIASES.get(name, name), SCHEDULES)


def _rank_order(flag: str, text: str) -> str:
    order = text.strip().lower()
    if sorted(order.split("-")) != sorted(AXES):
        raise InputError(
            f"{flag} {text!r} is not an order of the axes. Legal: {', '.join(AXES)}, each once,"
            " joined by '-', innermost first"
        )
    return order


def plan_fields(flags: PlanFlags, own: bool = False) -> dict[str, object]:
    """The fields of a Plan that the flags, or the file of `--plan`, state.

    `own`: the schedule may be a file of the user's own.
    """
    fields: dict[str, object] = {} if flags.plan is None else _file_fields(flags.plan, own)
    for name in DEGREES:
        text = getattr(flags, name)
        if text is not None:
            fields[name] = values.whole(f"--{name}", text, 1, 10**7)
    if flags.schedule is not None:
        fields["schedule"] = _schedule("--schedule", flags.schedule, own, fields)
    if flags.recompute is not None:
        fields.update(_recompute("--recompute", flags.recompute))
    if flags.zero is not None:
        fields["zero"] = values.whole("--zero", flags.zero, 0, 3)
    if flags.shard_group is not None:
        fields["shard_group"] = values.whole("--shard-group", flags.shard_group, 1, 10**7)
    if flags.sequence_parallel is not None:
        fields["sequence_parallel"] = flags.sequence_parallel
    if flags.offload:
        fields.update(_offload("--offload", flags.offload))
    if flags.stages is not None:
        fields["stages"] = _stages("--stages", flags.stages)
    if flags.rank_order is not None:
        fields["rank_order"] = _rank_order("--rank-order", flags.rank_order)
    _contradictions(fields)
    return fields


def _file_fields(name: str, own: bool) -> dict[str, object]:
    """The same fields from a TOML or JSON file; a plan result's own `plan` object is read too."""
    table: dict[str, Any] = files.read_stated(name, "a plan, as tp = 8")
    if isinstance(table.get("plans"), list):
        table = _first_listed(name, table["plans"])
    if isinstance(table.get("plan"), dict):
        table = files.stated(table["plan"], f"{name}: plan", "a plan, as tp = 8")
    unknown = sorted(set(table) - set(_FILE_KEYS))
    if unknown:
        raise UnknownKeysError(f"--plan {name}", unknown, _FILE_KEYS)
    fields: dict[str, object] = {}
    for key, value in table.items():
        where = f"{name}: {key}"
        if key in (*DEGREES, "num_microbatches"):
            fields[key] = values.whole(where, _plain_int(where, value), 1, 10**7)
        elif key in ("recompute_layers", "shard_group"):
            fields[key] = values.whole(where, _plain_int(where, value), 0, 10**7)
        elif key == "zero":
            fields[key] = values.whole(where, _plain_int(where, value), 0, 3)
        elif key == "recompute":
            fields = {**_recompute(where, str(value)), **fields}
        elif key == "offload":
            fields.update(_offload(where, [str(value)]))
        elif key in ("offload_optimizer", "offload_activations"):
            fields[key] = values.real(where, str(value), 0.0, 1.0, "share")
        elif key == "sequence_parallel":
            if not isinstance(value, bool):
                raise InputError(f"{where}={value!r} is not a flag. Legal: true, false")
            fields[key] = value
        elif key == "stages":
            fields[key] = _stages_of_file(where, value)
        elif key == "schedule":
            fields[key] = _schedule(where, str(value), own, fields)
        else:
            fields[key] = _rank_order(where, str(value))
    return fields


def _first_listed(name: str, plans: list[Any]) -> dict[str, Any]:
    """The first plan of what `plan --json` wrote."""
    if not plans or not isinstance(plans[0], dict):
        raise InputError(
            f"--plan {name} lists no plan. Legal: plans that fit, or a plan, as tp = 8"
        )
    if len(plans) > 1:
        screen.note(f"{name} lists {len(plans)} plans: the first is taken")
    return plans[0]


def _plain_int(where: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}={value!r} is not a whole number. Legal: 1 and more")
    return str(value)


def _stages_of_file(where: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return _stages(where, value)
    if not isinstance(value, list):
        raise InputError(f"{where}={value!r} is not a list. Legal: layers a stage, as [10, 12]")
    return tuple(values.whole(where, _plain_int(where, item), 0, 10**5) for item in value)


def _contradictions(fields: dict[str, object]) -> None:
    """Refuse fields that cannot be meant together, whatever the model and the cluster."""
    schedule, pp, vpp = fields.get("schedule"), fields.get("pp"), fields.get("vpp")
    if isinstance(vpp, int) and vpp > 1 and pp == 1:
        raise InputError(f"--vpp {vpp} with --pp 1: one rank has no pipeline. Legal vpp here: 1")
    if schedule in TWO_CHUNKS and vpp not in (None, 2):
        raise InputError(f"--schedule {schedule} has 2 chunks a rank, not {vpp}. Legal vpp: 2")
    named = isinstance(schedule, str) and not schedule.startswith(OWN_FILES)
    one_chunk = named and schedule not in (*TWO_CHUNKS, *MANY_CHUNKS)
    if one_chunk and isinstance(vpp, int) and vpp > 1:
        raise InputError(
            f"--schedule {schedule} has one chunk a rank, --vpp {vpp} asks for {vpp}."
            f" Legal: --vpp 1, or --schedule {', '.join(MANY_CHUNKS)}"
        )
    if schedule == "interleaved" and vpp == 1:
        raise InputError("--schedule interleaved with --vpp 1 is 1f1b. Legal: --vpp 2 and more")
    if fields.get("recompute_layers") and fields.get("recompute") != "full":
        raise InputError(
            f"recompute_layers={fields['recompute_layers']} with recompute="
            f"{fields.get('recompute')}: N layers belong to full. Legal: full:N"
        )
    if fields.get("zero") == 0 and fields.get("shard_group"):
        raise InputError(
            f"--shard-group {fields['shard_group']} with --zero 0: nothing is sharded."
            " Legal: --zero 1, 2, 3, or no --shard-group"
        )
    _stage_count(fields)


def _stage_count(fields: dict[str, object]) -> None:
    stages, pp, vpp = fields.get("stages"), fields.get("pp"), fields.get("vpp")
    if not isinstance(stages, tuple) or not isinstance(pp, int):
        return
    need = pp * (vpp if isinstance(vpp, int) else 1)
    if isinstance(vpp, int) or len(stages) % pp:
        if len(stages) != need:
            raise InputError(
                f"--stages has {len(stages)} entries, pp x vpp = {pp} x {need // pp} needs"
                f" {need}. Legal: {need} numbers"
            )
    else:
        fields["vpp"] = len(stages) // pp


def _derive_dp(job: Job, fields: dict[str, Any]) -> int:
    """The data parallel degree that uses all devices, by the product rule."""
    devices = job.cluster.devices
    tp, cp, pp = (int(fields.get(axis, 1)) for axis in ("tp", "cp", "pp"))
    inner = tp * cp * pp
    if devices % inner:
        stated = [axis for axis in ("pp", "tp", "cp") if fields.get(axis, 1) > 1]
        hints = []
        for axis in stated:
            rest = inner // fields[axis]
            if devices % rest == 0:
                legal = values.nearest(fields[axis], values.divisors(devices // rest))
                hints.append(f"{axis} {legal}")
        raise InputError(
            f"tp x cp x pp = {tp} x {cp} x {pp} = {inner} does not divide the {devices} devices"
            f" of {job.cluster.name}. Legal here: {'; '.join(hints) or 'another device count'}"
        )
    dp = devices // inner
    stated_dp = fields.get("dp")
    if stated_dp is not None and stated_dp != dp:
        raise InputError(
            f"tp x cp x pp x dp = {tp} x {cp} x {pp} x {stated_dp} = {inner * stated_dp}, but the"
            f" cluster has {devices} devices. Legal dp here: {dp}"
        )
    return dp


def whole_plan(job: Job, fields: dict[str, Any]) -> Plan:
    """A Plan of all devices and the whole batch; dp and the microbatch count are derived."""
    check_fixed(job, fields, fewer_devices=True)
    dp = _derive_dp(job, fields)
    mbs, batch = fields.get("mbs", 1), job.recipe.global_batch
    if batch % (dp * mbs):
        if batch % dp:
            legal = f"global batch {values.nearest(batch, (dp * k for k in _around(batch / dp)))}"
        else:
            legal = f"mbs {values.nearest(mbs, values.divisors(batch // dp))}"
        raise InputError(
            f"dp x mbs = {dp} x {mbs} = {dp * mbs} does not divide the global batch of {batch}"
            f" sequences. Legal here: {legal}"
        )
    made = {"num_microbatches": batch // (dp * mbs), **fields, "dp": dp}
    made.setdefault("schedule", _default_schedule(made))
    if made["schedule"] in TWO_CHUNKS:
        made.setdefault("vpp", 2)
    if made["schedule"] == "interleaved" and made.get("vpp", 1) == 1:
        raise InputError("--schedule interleaved needs chunks. Legal: --vpp 2 and more")
    plan = validate(Plan, made, "plan")
    check_plan(job, plan)
    if plan.recompute_layers:
        chunks = plan.pp * plan.vpp
        largest = max(plan.stages or default_counts(job.model.layers, chunks))
        _recomputed(plan.recompute_layers, largest, f"the largest of {chunks} chunks")
    return plan


def _recomputed(count: int, most: int, where: str) -> None:
    """Refuse full recompute of more layers than there are."""
    if count > most:
        raise InputError(
            f"--recompute full:{count}: {where} has {most} layers."
            f" Legal here: full:1 to full:{most}, or full for all of them"
        )


def check_fixed(job: Job, fields: dict[str, Any], fewer_devices: bool = False) -> None:
    """Refuse fixed parts of a plan that no plan of this job can have."""
    shape = {k: fields[k] for k in ("tp", "cp", "ep", "etp", "sequence_parallel") if k in fields}
    check_shapes(job.model, Plan(**shape), job.recipe.seq_len)
    _recomputed(fields.get("recompute_layers", 0), job.model.layers, job.model.name)
    stated = {axis: fields[axis] for axis in ("tp", "cp", "pp", "dp") if axis in fields}
    inner = math.prod(stated.values())
    if not fewer_devices and job.cluster.devices % inner:
        if "dp" not in fields:
            _derive_dp(job, fields)
        raise InputError(
            f"{' x '.join(stated)} = {values.product(stated.values())} does not"
            f" divide the {job.cluster.devices} devices of {job.cluster.name}."
            f" Legal products: {values.nearest(inner, values.divisors(job.cluster.devices))}"
        )
    share = fields.get("dp", 1) * fields.get("mbs", 1)
    if job.recipe.global_batch % share:
        raise InputError(
            f"dp x mbs = {fields.get('dp', 1)} x {fields.get('mbs', 1)} = {share} does not divide"
            f" the global batch of {job.recipe.global_batch} sequences. Legal products:"
            f" {values.nearest(share, values.divisors(job.recipe.global_batch))}"
        )
    check_stages(job.model, fields.get("pp", 1), fields.get("vpp", 1), fields.get("stages"))


def _default_schedule(made: dict[str, Any]) -> str:
    return "interleaved" if made.get("vpp", 1) > 1 else "1f1b"


def _around(ratio: float) -> tuple[int, ...]:
    low = max(1, math.floor(ratio))
    return (low, low + 1)
