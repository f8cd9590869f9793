"""Thousands of steps of one plan with noise on every operation: the distribution of the step.

The schedule becomes a graph once: nodes in an order in which everything needed comes first. A
step then is one pass over it for each replica; a replica is what runs in lock-step. Every node
lasts its mean times the pace of its group, times a drawn factor, times the length of its
microbatch; a stage is done when its last replica is, and the step when its last stage is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.jit import compiled, kernel
from gangsaw.schedule.actions import PAIR_SECOND, B, F, I, Schedule, W
from gangsaw.schedule.legal import crossings
from gangsaw.simulate.kernel import together
from gangsaw.simulate.times import StageTimes, Transfers

I32 = NDArray[np.int32]
THREADS = 2
GAMMA = 0x9E3779B97F4A7C15
"""Step of the counter generator."""
NONE = -1


class Graph(NamedTuple):
    """Nodes [n] in topological order; an overlapped pair is one node.

    rank, microbatch int32 [n]; base float64 [n] seconds; needs int32 [2, n]: outputs waited for
    (2 x node + output, or -1); link int32 [2, n] of each output (-1: none), occupies and late
    float64 [2, n] as in `Transfers`; blocking: a sender waits for its link.
    """

    rank: I32
    microbatch: I32
    base: Array
    needs: I32
    link: I32
    occupies: Array
    late: Array
    ranks: int
    links: int
    microbatches: int
    blocking: bool


def graph_of(schedule: Schedule, times: StageTimes, transfers: Transfers | None = None) -> Graph:
    """The graph of a schedule of compute actions. Raises InputError for shared links."""
    if transfers is not None and transfers.links is not None:
        raise InputError("tail: links shared between ranks are not simulated step by step")
    s = schedule.compute_only()
    lasts = np.zeros((4, s.stages))
    lasts[F], lasts[I], lasts[W], lasts[B] = (
        times.forward_s, times.backward_s, times.weight_s, times.whole_s,
    )  # fmt: skip
    heads = np.flatnonzero(s.pair != PAIR_SECOND)
    node_of = np.cumsum(s.pair != PAIR_SECOND) - 1
    ranks = s.rank_index()
    numbers: dict[tuple[int, int], int] = {}
    makes = {
        (int(s.kind[i] == F), int(s.stage[i]), int(s.microbatch[i])): i
        for i in range(s.actions)
        if s.kind[i] != W
    }
    per_pipe = s.stages // s.pipes
    cross = crossings(s)
    n = len(heads)
    base, needs = np.zeros(n), np.full((2, n), NONE, np.int32)
    link = np.full((2, n), NONE, np.int32)
    occupies, late = np.zeros((2, n)), np.zeros((2, n))
    for i in range(s.actions):
        node, out = int(node_of[i]), int(s.pair[i] == PAIR_SECOND)
        kind, stage, m = int(s.kind[i]), int(s.stage[i]), int(s.microbatch[i])
        own = float(lasts[kind, stage])
        base[node] = together(base[node], own, times.overlap_frac) if out else own
        if kind == W:
            continue
        way = 1 if kind == F else -1
        first, last = stage % per_pipe == 0, (stage + 1) % per_pipe == 0
        if not (first if kind == F else last):
            source = makes[(int(kind == F), stage - way, m)]
            needs[out, node] = 2 * node_of[source] + int(s.pair[source] == PAIR_SECOND)
        boundary = stage if kind == F else stage - 1
        if not (last if kind == F else first) and transfers is not None and cross[boundary]:
            way_to = (int(ranks[i]), int(s.rank_of[stage + way]))
            link[out, node] = numbers.setdefault(way_to, len(numbers))
            occupies[out, node] = transfers.bytes_each[boundary] / transfers.bytes_per_s[boundary]
            late[out, node] = transfers.latency_s[boundary]
    order = _topological(ranks[heads], needs)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    wanted = needs[:, order]
    moved = np.where(wanted >= 0, 2 * place[wanted // 2] + wanted % 2, NONE).astype(np.int32)
    # Microbatches of a second pipe are others than those of the first.
    number = s.microbatch[heads] + s.microbatches * (s.stage[heads] // per_pipe)
    return Graph(
        ranks[heads][order].astype(np.int32), number[order].astype(np.int32), base[order], moved,
        link[:, order], occupies[:, order], late[:, order], s.ranks, len(numbers),
        s.microbatches * s.pipes, transfers is not None and transfers.blocking,
    )  # fmt: skip


def _topological(rank: I32, needs: I32) -> NDArray[np.int64]:
    """Nodes so that each comes after those before it on its rank and those it needs."""
    n = len(rank)
    after: list[list[int]] = [[] for _ in range(n)]
    missing = np.zeros(n, np.int64)
    for i in range(n):
        for o in (0, 1):
            if needs[o, i] >= 0:
                after[int(needs[o, i]) // 2].append(i)
                missing[i] += 1
        if i and rank[i - 1] == rank[i]:
            after[i - 1].append(i)
            missing[i] += 1
    ready = [i for i in range(n - 1, -1, -1) if missing[i] == 0]
    out: list[int] = []
    while ready:
        i = ready.pop()
        out.append(i)
        for j in after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                ready.append(j)
    if len(out) < n:
        raise InputError("tail: the schedule deadlocks")
    return np.array(out, np.int64)


def play_vector(graph: Graph, factor: Array, noise: Callable[[int], Array] | None = None) -> Array:
    """End of every rank's work, [ranks, v], for v cases at once, in plain numpy.

    factor [ranks, v]: pace of each rank; noise(i) [v]: factors of node i.
    """
    cases = factor.shape[1]
    free = np.zeros((graph.ranks, cases))
    link = np.zeros((graph.links, cases))
    ready = np.zeros((2 * len(graph.base), cases))
    for i in range(len(graph.base)):
        rank = graph.rank[i]
        begin = free[rank].copy()
        for o in (0, 1):
            if graph.needs[o, i] >= 0:
                begin = np.maximum(begin, ready[graph.needs[o, i]])
        end = begin + graph.base[i] * factor[rank] * (1.0 if noise is None else noise(i))
        held = end
        for o in (0, 1):
            at = graph.link[o, i]
            if at < 0:
                ready[2 * i + o] = end
                continue
            done = np.maximum(end, link[at]) + graph.occupies[o, i]
            link[at] = done
            ready[2 * i + o] = done + graph.late[o, i]
            if graph.blocking:
                held = np.maximum(held, done)
        free[rank] = held
    return free


class Tables(NamedTuple):
    """What is drawn from: factors of an operation, of a microbatch's length, of the fabric
    (float32 [65536] each); chance and seconds of a pause of a lock-step group in a step.
    """

    operation: NDArray[np.float32]
    length: NDArray[np.float32]
    fabric: NDArray[np.float32]
    pause_prob: float
    pause_s: float


class After(NamedTuple):
    """Seconds of a step after the pipeline: on the fabric (factors apply), and the rest.

    `inside_frac` of every operation is traffic on the fabric as well, and so are the hops between
    stages where `hops` is 1.
    """

    fabric_s: float
    rest_s: float
    inside_frac: float = 0.0
    hops: float = 0.0


@kernel
def mix(state: np.uint64) -> np.uint64:
    """Next state of a 64-bit counter generator (splitmix64, Steele et al. 2014), its output."""
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Work(NamedTuple):
    """Arrays of one replica's pass: free [ranks], link [links], ready [2 nodes], length [m]."""

    free: Array
    link: Array
    ready: Array
    length: Array


class Numbers(NamedTuple):
    """Which random numbers: the seed, and the number of the first step."""

    seed: int
    first: int


@kernel
def draw_replica(g: Graph, tables: Tables, work: Work, state: np.uint64) -> np.uint64:
    """Lengths of the microbatches and pauses of one replica; the state after them."""
    work.free[:] = 0.0
    work.link[:] = 0.0
    work.length[:] = 1.0
    if tables.length[0] != tables.length[-1]:
        for k in range(g.microbatches):
            state += np.uint64(GAMMA)
            work.length[k] = tables.length[mix(state) & np.uint64(0xFFFF)]
    if tables.pause_prob > 0.0:
        # A pause anywhere before a rank's end delays it; its begin is as good as any moment.
        for rank in range(g.ranks):
            state += np.uint64(GAMMA)
            if (mix(state) >> np.uint64(11)) * 2.0**-53 < tables.pause_prob:
                work.free[rank] = tables.pause_s
    return state


@kernel
def play_replica(
    g: Graph, pace: Array, tables: Tables, work: Work, state: np.uint64, hop: float
) -> np.uint64:
    """One pass of one replica over the graph, pace [ranks]; ends are in `work.free`.

    `hop`: factor on the seconds that a transfer occupies its link.
    """
    free, link, ready, length = work.free, work.link, work.ready, work.length
    noisy = tables.operation[0] != tables.operation[-1]
    word = np.uint64(0)
    bits = 0
    for i in range(g.base.size):
        rank = g.rank[i]
        begin = free[rank]
        if g.needs[0, i] >= 0:
            begin = max(begin, ready[g.needs[0, i]])
        if g.needs[1, i] >= 0:
            begin = max(begin, ready[g.needs[1, i]])
        lasts = g.base[i] * pace[rank] * length[g.microbatch[i]]
        if noisy:
            if bits == 0:
                state += np.uint64(GAMMA)
                word = mix(state)
                bits = 4
            lasts *= tables.operation[word & np.uint64(0xFFFF)]
            word = word >> np.uint64(16)
            bits -= 1
        end = begin + lasts
        held = end
        for o in range(2):
            at = g.link[o, i]
            if at < 0:
                ready[2 * i + o] = end
            else:
                done = max(end, link[at]) + g.occupies[o, i] * hop
                link[at] = done
                ready[2 * i + o] = done + g.late[o, i]
                if g.blocking:
                    held = max(held, done)
        free[rank] = held
    return state


@kernel
def play_steps(
    g: Graph, pace: Array, tables: Tables, after: After, numbers: Numbers, out: Array
) -> None:
    """Steps of one cluster from `numbers.first` on; each step has random numbers of its own.

    pace [replicas, ranks]. out [steps, 4]: step, pipeline of the mean replica, of the slowest,
    seconds on the fabric.
    """
    work = Work(
        np.empty(g.ranks), np.empty(g.links), np.empty(2 * g.base.size), np.empty(g.microbatches)
    )
    own_pace = np.empty(g.ranks)
    for step in range(out.shape[0]):
        own = mix(np.uint64(numbers.first + step))
        state = mix(np.uint64(numbers.seed) * np.uint64(GAMMA) + own)
        total = worst = 0.0
        state += np.uint64(GAMMA)
        slow = float(tables.fabric[mix(state) & np.uint64(0xFFFF)])
        for r in range(pace.shape[0]):
            own_pace[:] = pace[r] * (1.0 + after.inside_frac * (slow - 1.0))
            state = draw_replica(g, tables, work, state)
            state = play_replica(g, own_pace, tables, work, state, 1.0 + after.hops * (slow - 1.0))
            pipe = work.free.max()
            total += pipe
            worst = max(worst, pipe)
        fabric = after.fabric_s * slow
        out[step, 0] = worst + fabric + after.rest_s
        out[step, 1] = total / pace.shape[0]
        out[step, 2] = worst
        out[step, 3] = fabric


@dataclass(frozen=True, eq=False)
class StepDraws:
    """Drawn steps of several clusters: [clusters, steps] each, seconds."""

    step_s: Array
    mean_replica_s: Array
    slowest_replica_s: Array
    fabric_s: Array
    seed: int

    @property
    def draws(self) -> int:
        """Steps in all."""
        return int(self.step_s.size)


def draw_steps(
    graph: Graph, paces: Array, tables: Tables, after: After, steps: int, seed: int
) -> StepDraws:
    """`steps` steps of each cluster; paces [clusters, replicas, ranks].

    Equal seeds give equal steps, however many threads work on them.
    """
    if steps < 1 or not len(paces):
        raise InputError(f"steps={steps}: at least one step of one cluster is drawn")
    out = np.zeros((len(paces), steps, 4))
    play = compiled(play_steps)

    def one(cluster: int) -> None:
        pace = np.ascontiguousarray(paces[cluster])
        play(graph, pace, tables, after, Numbers(seed, cluster * steps), out[cluster])

    one(0)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, range(1, len(paces))))
    return StepDraws(out[..., 0], out[..., 1], out[..., 2], out[..., 3], seed)


class Percentile(NamedTuple):
    """A percentile with its standard error, in seconds."""

    at_frac: float
    value_s: float
    error_s: float


def percentiles(
    step_s: Array, at: tuple[float, ...], seed: int, resamples: int = 200
) -> tuple[float, float, tuple[Percentile, ...]]:
    """Mean, its standard error, and percentiles of [clusters, steps], by resampling clusters.

    Steps of one cluster are not independent, so whole clusters are drawn again (Efron's bootstrap,
    by cluster); with one cluster its steps are.
    """
    rng = np.random.default_rng(seed)
    table = step_s if len(step_s) > 1 else step_s.reshape(-1, 1)
    found = np.quantile(table, at)
    drawn = np.empty((resamples, len(at) + 1))
    for k in range(resamples):
        again = table[rng.integers(len(table), size=len(table))]
        drawn[k, 0] = again.mean()
        drawn[k, 1:] = np.quantile(again, at)
    errors = drawn.std(axis=0, ddof=1)
    rows = tuple(
        Percentile(q, float(v), float(e)) for q, v, e in zip(at, found, errors[1:], strict=True)
    )
    return float(table.mean()), float(errors[0]), rows


def variance_by_axis(draws: StepDraws) -> dict[str, float]:
    """Shares of the variance of the step, by covariance with its parts; they sum to 1.

    clusters: between clusters (which devices are slow); pipeline: a replica's own way; data
    parallel: the slowest replica over the mean one; fabric: collisions.
    """
    step = draws.step_s
    total = float(step.var())
    if total == 0.0:
        return {"clusters": 0.0, "pipeline": 0.0, "data parallel": 0.0, "fabric": 0.0}
    between = float(step.mean(axis=1).var())

    def within(part: Array) -> float:
        a = step - step.mean(axis=1, keepdims=True)
        b = part - part.mean(axis=1, keepdims=True)
        return float((a * b).mean()) / total

    return {
        "clusters": between / total,
        "pipeline": within(draws.mean_replica_s),
        "data parallel": within(draws.slowest_replica_s - draws.mean_replica_s),
        "fabric": within(draws.fabric_s),
    }
