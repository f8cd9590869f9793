"""All legal plans of a job: which blocks of degrees there are, and what runs inside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gangsaw.cost.ends import end_time
from gangsaw.cost.evaluate import time_table
from gangsaw.cost.kinds import kind_rows
from gangsaw.cost.legal import divisors, legal_tp
from gangsaw.cost.lower import (
    Lowered,
    axis_strides,
    cut_of,
    end_layers,
    kind_count,
    layer_order,
    lower,
    schedule_code,
    shape_of,
    strides_of,
)
from gangsaw.cost.memory import end_memory, memory_table
from gangsaw.cost.memory_doc import capacity_of, interval, memory_state
from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.jit import compiled
from gangsaw.search.blocks import (
    ENDS,
    STRIDE_DP,
    block_bounds,
    count_plans,
    search_blocks,
    shard_groups,
)
from gangsaw.search.inner import (
    EVERY,
    NO,
    SMALLEST,
    TIERS,
    Found,
    Machine,
    Space,
    decode,
)
from gangsaw.search.layouts import FREE, Tables, guard_of, layout, line_of
from gangsaw.search.on_site import lower_on_site
from gangsaw.spec import ModelSpec, Plan
from gangsaw.spec.job import Job
from gangsaw.spec.plan import SCHEDULES

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Rank orders searched: stages far apart or near; tensor ranks are neighbours in both."""
MAX_TP, MAX_CP, MAX_CHUNKS = 1024, 64, 64
FORMS = ("none", "selective", "full")


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to, and which of its fields the user has fixed."""

    max_devices: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    headroom_frac: float = 0.0
    fixed: Mapping[str, object] = field(default_factory=dict)
    top: int = 5
    fewer_devices: bool = False
    exhaustive: bool = False


@dataclass(frozen=True)
class Breadth:
    """How far the inner loops go. The defaults leave out only plans that cannot be best."""

    first_layers: int = SMALLEST
    hybrid: int = TIERS
    slack: float = 1.15
    offload: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (0.0,))
    keep: float = 2.0
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "gpipe", "bfs")
    zeros: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True)
class Searched:
    """The plans of one device count that are worth a place: codes, times and peaks.

    Plans that do not fit and those far behind the fastest are counted and not kept; place 0 may
    hold the one that needs least memory of those that do not fit.
    """

    job: Job
    low: Lowered
    blocks: Array
    found: Found
    space: Space
    orders: tuple[str, ...]
    rooms: tuple[float, float] = (math.inf, math.inf)
    """Device bytes up to which a plan may fit, and surely fits."""

    @property
    def evaluated(self) -> int:
        """Plans whose time and memory were evaluated."""
        return int(self.found.tally[0])

    @property
    def fit(self) -> int:
        """Evaluated plans that may fit."""
        return int(self.found.tally[1])

    def room_at(self, index: int) -> int:
        """For which memory the stages of the plan at a place are laid out: FREE, SURE or MAYBE."""
        return decode(int(self.found.codes[index]))[-1]

    def plan_at(self, index: int) -> Plan:
        """The plan at a place of the result arrays, without its stage layout."""
        block = self.blocks[self.found.owner[index]]
        schedule, v, rec, first, zero, choices, _ = decode(int(self.found.codes[index]))
        shard, off_o, off_a = choices
        tp, cp, pp, dp, ep, etp, mbs, sp, order = (int(x) for x in block[:9])
        group = dp * cp
        choice = int(shard_groups(self.space, group, block[STRIDE_DP], self.low.net)[shard])
        whole = choice == group and not self.space.shard_only
        offload_o = float(self.space.offload_optimizer[off_o])
        offload_a = float(self.space.offload_activations[off_a])
        return Plan(
            tp=tp, cp=cp, pp=pp, vpp=v, dp=dp, ep=ep, etp=etp, mbs=mbs,
            num_microbatches=self.job.recipe.global_batch // (dp * mbs),
            schedule=SCHEDULES[schedule], recompute=FORMS[rec], recompute_layers=first, zero=zero,
            shard_group=0 if whole or zero == 0 else choice, sequence_parallel=bool(sp),
            offload_optimizer=offload_o, offload_activations=offload_a,
            rank_order=self.orders[order],
        )  # fmt: skip


def stack_breadth(stack: str) -> Breadth:
    """Schedules and sharding that a software stack runs; all physical ones where none is named."""
    if stack.startswith("zero-bubble"):
        names = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
        return Breadth(schedules=names, zeros=(0, 1))
    if stack.startswith("megatron"):
        return Breadth(schedules=("1f1b", "interleaved"), zeros=(0, 1))
    if stack.startswith("torchtitan"):
        names = ("1f1b", "interleaved", "gpipe", "bfs", "izb", "zb-v", "dualpipe-v")
        return Breadth(schedules=names, zeros=(1, 2, 3))
    if stack.startswith(("fsdp1", "hf-eager", "automodel")):
        return Breadth(schedules=("1f1b",), zeros=(0, 1, 2, 3))
    return Breadth()


def _fixed(name: str, fixed: Mapping[str, object], default: int) -> int:
    wanted = fixed.get(name)
    return default if wanted is None else int(str(wanted))


def _allowed(name: str, values: Sequence[int], fixed: Mapping[str, object]) -> list[int]:
    number = _fixed(name, fixed, 0)
    if not number:
        return list(values)
    return [number] if number in values else []


def orders_of(fixed: Mapping[str, object]) -> tuple[str, ...]:
    """Rank orders that are searched: the user's own, whatever it is, or the usual two."""
    wanted = fixed.get("rank_order")
    return ORDERS if wanted is None else (str(wanted),)


def stages_of(fixed: Mapping[str, object]) -> tuple[int, ...]:
    """The user's own layers of each chunk; empty where the layout is solved."""
    wanted = fixed.get("stages")
    return tuple(int(n) for n in wanted) if isinstance(wanted, tuple | list) else ()


def expert_splits(
    model: ModelSpec, ranks: int, tp: int, fixed: Mapping[str, object]
) -> list[tuple[int, int]]:
    """(ep, etp) pairs over the tp x cp x dp ranks of a stage; etp is 1 or tp unless fixed."""
    moes = [k.moe for k in model.kinds if k.moe is not None]
    if not moes:
        return [(1, 1)]
    experts = divisors(moes[0].experts)
    pairs = []
    for etp in sorted({_fixed("etp", fixed, 1), _fixed("etp", fixed, tp)}):
        if any(m.expert.ffn % etp for m in moes):
            continue
        for ep in experts:
            if ranks % (ep * etp) == 0 and all(m.experts % ep == 0 for m in moes):
                pairs.append((ep, etp))
    return pairs


def degree_splits(
    job: Job, fixed: Mapping[str, object]
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Every (tp, cp, pp, dp, ep, etp) of the cluster's devices that the model's shapes allow."""
    n, batch, s = job.cluster.devices, job.recipe.global_batch, job.recipe.seq_len
    chunks, shard = len(stages_of(fixed)), _fixed("shard_group", fixed, 0)
    most_cp = max(MAX_CP, _fixed("cp", fixed, 1))
    most_pp = chunks or job.model.layers + ENDS
    tps = _allowed("tp", [t for t in legal_tp(job.model, MAX_TP) if n % t == 0], fixed)
    for tp in tps:
        cps = [c for c in divisors(n // tp, most_cp) if c == 1 or s % (2 * c) == 0]
        for cp in _allowed("cp", cps, fixed):
            pps = [p for p in divisors(n // tp // cp) if p <= most_pp]
            for pp in _allowed("pp", pps, fixed):
                dp = n // tp // cp // pp
                if batch % dp or not _allowed("dp", [dp], fixed):
                    continue
                if (chunks and chunks % pp) or (shard and dp * cp % shard):
                    continue
                for ep, etp in expert_splits(job.model, tp * cp * dp, tp, fixed):
                    if _allowed("ep", [ep], fixed):
                        yield tp, cp, pp, dp, ep, etp


def _sequence_parallel(job: Job, tp: int, cp: int, fixed: Mapping[str, object]) -> list[int]:
    choices = [0] if tp == 1 or job.recipe.seq_len % (tp * cp) else [0, 1]
    wanted = fixed.get("sequence_parallel")
    if wanted is None or tp == 1:
        return choices
    return [c for c in choices if c == int(bool(wanted))]


def blocks_of(job: Job, fixed: Mapping[str, object]) -> Array:
    """(B, 16): degrees, microbatch, sequence parallelism, rank order and strides of each block."""
    rows = []
    orders = orders_of(fixed)
    for tp, cp, pp, dp, ep, etp in degree_splits(job, fixed):
        micro = divisors(job.recipe.global_batch // dp)
        per = job.recipe.global_batch // dp
        steps = _allowed("num_microbatches", [per // b for b in micro], fixed)
        degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}
        for mbs in _allowed("mbs", [b for b in micro if per // b in steps], fixed):
            for sp in _sequence_parallel(job, tp, cp, fixed):
                for code, order in enumerate(orders):
                    if code and not (pp > 1 and dp > 1 and ep * etp <= tp * cp):
                        continue
                    strides = axis_strides(order.split("-"), degrees)
                    rows.append([tp, cp, pp, dp, ep, etp, mbs, sp, code, *strides])
    return np.array(rows, dtype=np.float64).reshape(len(rows), 16)


DOMINATED = {"bfs": "interleaved"}
"""Schedules that take as long as another and never hold less, so that they cannot be best. GPipe
is not among them: it holds more than 1F1B, but waits for fewer transfers."""


def useful_schedules(breadth: Breadth, fixed: Mapping[str, object]) -> list[str]:
    """The schedules that a search goes through: the fixed one, else those that can be best."""
    wanted = fixed.get("schedule")
    if wanted is not None:
        return [str(wanted)]
    names = list(breadth.schedules)
    if math.isinf(breadth.slack):
        return names
    return [n for n in names if DOMINATED.get(n) not in names]


def space_of(job: Job, breadth: Breadth, fixed: Mapping[str, object]) -> Space:
    """The inner loops as numbers, what the user fixed taken into account."""
    schedules = useful_schedules(breadth, fixed)
    forms = [i for i, f in enumerate(FORMS) if fixed.get("recompute") in (None, f)]
    zeros = [z for z in breadth.zeros if fixed.get("zero") in (None, z)]
    if fixed.get("zero") is not None and not zeros:
        zeros = [_fixed("zero", fixed, 0)]
    if fixed.get("shard_group"):
        zeros = [z for z in zeros if z > 0]
    first = fixed.get("recompute_layers")
    if first:
        forms = [FORMS.index("full")]
    return Space(
        schedules=np.array([schedule_code(s) for s in schedules], dtype=np.int64),
        recomputes=np.array(forms, dtype=np.int64),
        first_layers=breadth.first_layers,
        zeros=np.array(zeros, dtype=np.int64),
        hybrid=breadth.hybrid,
        offload_optimizer=np.array(breadth.offload[0], dtype=np.float64),
        offload_activations=np.array(breadth.offload[1], dtype=np.float64),
        min_chunks=_fixed("vpp", fixed, 1),
        max_chunks=_fixed("vpp", fixed, max(MAX_CHUNKS, len(stages_of(fixed)))),
        multiple=int(job.stack.rules.startswith(("megatron", "zero-bubble"))),
        order=layer_order(job.model),
        kinds=kind_count(job.model),
        mtp=end_layers(job.model)[0],
        vision=end_layers(job.model)[1],
        global_batch=float(job.recipe.global_batch),
        first_only=-1 if first is None else int(str(first)),
        shard_only=_fixed("shard_group", fixed, 0),
        stages=np.array(stages_of(fixed), dtype=np.float64),
    )


def capacity_bytes(job: Job, headroom_frac: float = 0.0) -> float:
    """Bytes under which a plan is taken as fitting: usable, less the wanted headroom."""
    return capacity_of(job.cluster) * (1.0 - headroom_frac)


def sure_bytes(capacity: float, doubt_frac: float) -> float:
    """Bytes under which a plan surely fits: the whole 80 % interval of its peak does."""
    low, _ = interval(capacity, doubt_frac)
    return low


def search_all(
    job: Job, fixed: Mapping[str, object], breadth: Breadth, headroom_frac: float = 0.0
) -> Searched:
    """Evaluate the plans of a job's devices: time and memory of each."""
    low, shared = lower_on_site(job)
    blocks = blocks_of(job, fixed)
    space = space_of(job, breadth, fixed)
    base, state = cut_of(Plan(), job.recipe), memory_state(Plan(), job.recipe)
    kinds = kind_rows(low.kinds)
    machine = Machine(low.device, low.net, low.stack, low.memory)
    total = done = 0
    bounds = np.zeros(len(blocks))
    if len(blocks):
        total = int(compiled(count_plans)(blocks, space, low.net))
        bounds, likely = compiled(block_bounds)(blocks, space, kinds, low.ends, base, machine)
        order = np.argsort(likely, kind="stable")
        blocks, bounds = np.ascontiguousarray(blocks[order]), bounds[order]
        if not math.isfinite(breadth.slack):
            bounds = np.zeros(len(blocks))
    places = 2 * total + 1  # each plan, and again within memory; untouched pages cost nothing
    found = Found(
        np.empty(places, np.int64),
        np.empty(places, np.int32),
        np.empty(places, np.float32),
        np.empty(places, np.float32),
        np.zeros(2, np.int64),
    )
    first = 1
    room = capacity_bytes(job, headroom_frac)
    rooms = (room, sure_bytes(room, job.stack.memory_doubt_frac))
    if total:
        done = compiled(search_blocks)(
            blocks, bounds, space, kinds, low.ends, base, state, machine, found, rooms,
            (breadth.slack, breadth.keep),
        )  # fmt: skip
        # With everything kept, place 0 is a copy.
        first = 0 if math.isfinite(found.peak[0]) and math.isfinite(breadth.keep) else 1
    step_s = found.step_s[first:done]
    kept = Found(
        found.codes[first:done], found.owner[first:done],
        step_s if shared == 1.0 else step_s * np.float32(shared),
        found.peak[first:done], found.tally,
    )  # fmt: skip
    return Searched(job, low, blocks, kept, space, orders_of(fixed), rooms)


def legal_plans(job: Job, fixed: Mapping[str, object], breadth: Breadth) -> int:
    """How many plans there are, every partial recompute and shard group counted."""
    blocks = blocks_of(job, fixed)
    if not len(blocks):
        return 0
    whole = exhaustive(breadth)
    net = lower(job).net
    return int(compiled(count_plans)(blocks, space_of(job, whole, fixed), net))


def exhaustive(breadth: Breadth) -> Breadth:
    """Every plan is evaluated, also those that cannot be best."""
    return replace(breadth, first_layers=EVERY, hybrid=EVERY, slack=math.inf)


def device_counts(job: Job, limits: Limits) -> list[int]:
    """The device counts to try, largest first.

    Fewer devices come in whole hosts; counts with a prime factor above 7 are left out, since no
    degrees divide them.
    """
    most = limits.max_devices or job.cluster.devices
    if most > job.cluster.devices:
        raise InputError(f"max devices {most} is more than the cluster's {job.cluster.devices}")
    if not limits.fewer_devices:
        return [most]
    host = job.cluster.host.devices
    counts = [d for d in divisors(host) if d < host and d <= most]
    hosts = 1
    while hosts * host <= most:
        rest = hosts
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            counts.append(hosts * host)
        hosts += 1
    return sorted({*counts, most}, reverse=True)


def with_devices(job: Job, devices: int) -> Job:
    """The job on fewer (or more) devices of the same cluster."""
    if devices == job.cluster.devices:
        return job
    tiers = list(job.cluster.tiers)
    if tiers[-1].devices < devices:
        tiers[-1] = tiers[-1].model_copy(update={"devices": devices})
    cluster = job.cluster.model_copy(update={"devices": devices, "tiers": tuple(tiers)})
    return job.model_copy(update={"cluster": cluster})


def narrower(breadth: Breadth) -> Breadth:
    """The inner loops without partial recompute and hybrid sharding."""
    return replace(breadth, first_layers=NO, hybrid=NO)


def layout_of(
    searched: Searched, plan: Plan, which: int = FREE, thorough: bool = False
) -> tuple[int, ...]:
    """The stage layout of a plan that the search found: the fastest, or that within a room.

    `thorough` looks further for unequal layers in several chunks a rank (`search.layouts`).
    """
    job, low, space = searched.job, searched.low, searched.space
    cut, strides = cut_of(plan, job.recipe), strides_of(plan)
    tables = Tables(
        time_table(low.kinds, cut, low.device, low.net, strides, low.stack),
        memory_table(low.kinds, cut, low.memory),
        end_time(low.ends, cut, low.device, low.net, strides, low.stack),
        end_memory(low.ends, cut, float(plan.pp), low.memory),
    )
    extra = (space.mtp, space.vision)
    line = line_of(space.order, space.kinds, extra, tables, plan.recompute == "full")
    if len(space.stages):
        return tuple(int(n) for n in space.stages)
    state = memory_state(plan, job.recipe)
    guard = guard_of(which, searched.rooms, tables, state, low.memory)
    counts = compiled(layout)(line, plan.pp, plan.vpp, shape_of(plan.schedule), guard, thorough)
    return tuple(int(n) for n in counts)
