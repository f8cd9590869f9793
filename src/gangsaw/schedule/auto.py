"""Synthesising an order from stage times: list scheduling under memory limits, and lower bounds.

Ranks decide in order of time. A free rank runs an input gradient or a forward that has arrived,
and fills the time until the next arrival with weight gradients; forwards are admitted up to a
number in flight a rank and the memory limit. Many admissions and preferences are tried
(`policies`), which covers the hand-made schedules' shapes and those between them; the idea of
filling waits with weight gradients under a memory limit is that of arXiv:2401.10241, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.jit import compiled, kernel
from gangsaw.schedule.actions import I32, I64, B, F, I, Row, Schedule, W, from_rows

INF = 1e300
UNKNOWN = -1.0
GRADIENT_FIRST, FORWARD_FIRST, BY_TURNS = range(3)


class Job(NamedTuple):
    """What is to be ordered. Arrays [stages]: seconds, seconds until the neighbour has the
    result, bytes held from the forward; `room_bytes` [ranks] for activations; `split` 1.0 where
    weight gradients are actions of their own.
    """

    rank_of: I32
    m: int
    forward_s: Array
    backward_s: Array
    weight_s: Array
    hop_s: Array
    held_bytes: Array
    release_frac: float
    room_bytes: Array
    split: float


class Policy(NamedTuple):
    """`cap` [ranks] microbatch chunks in flight; what goes first; whether later chunks do;
    `patience`: a weight gradient is not begun when an arrival is due within this share of it;
    `pace_s`: least time between two microbatches that enter at stage 0.
    """

    cap: Array
    prefer: int
    later_first: float
    patience: float
    pace_s: float


class Desk(NamedTuple):
    """What the list scheduler keeps. By stage: nexts [3, stages] of F, I, W; by stage and
    microbatch: arrivals; by rank: free, level, flying, last kind, when to look again; and the
    order made: kinds, stages, microbatches, ranks.
    """

    nexts: I64
    arrive_f: Array
    arrive_b: Array
    free: Array
    level: Array
    flying: I64
    last: I64
    look: Array
    order: I64


@kernel
def admitted(stage: int, rank: int, job: Job, policy: Policy, desk: Desk) -> bool:
    """Whether memory and the policy allow the next forward of a stage.

    Room stays for the later chunks of one microbatch, so that the oldest one can always go on.
    """
    later = 0.0
    first = True
    oldest = True
    microbatch = desk.nexts[F, stage]
    for other in range(len(job.rank_of)):
        if job.rank_of[other] != rank:
            continue
        if other > stage:
            later += job.held_bytes[other]
        if other < stage:
            first = False
        if desk.nexts[W, other] < microbatch:
            oldest = False
    reserve = later
    if not oldest and not first:
        reserve += job.held_bytes[stage]
    if desk.level[rank] + job.held_bytes[stage] + reserve > job.room_bytes[rank] * (1 + 1e-12):
        return False
    return (not first) or oldest or desk.flying[rank] < policy.cap[rank]


@kernel
def choose(rank: int, now: float, job: Job, policy: Policy, desk: Desk) -> tuple[int, int, float]:
    """Kind, stage and start of what the rank does next; kind -1: nothing, look again at start."""
    best_f, best_b, best_w = -1, -1, -1
    due = INF
    hungry = False
    for stage in range(len(job.rank_of)):
        if job.rank_of[stage] != rank:
            continue
        k = desk.nexts[F, stage]
        when = desk.arrive_f[stage, k] if k < job.m else UNKNOWN
        if when >= 0.0:
            if not admitted(stage, rank, job, policy, desk):
                hungry = hungry or when <= now
            elif when > now:
                due = min(due, when)
            elif best_f < 0 or policy.later_first > 0.5:
                best_f = stage
        k = desk.nexts[I, stage]
        when = desk.arrive_b[stage, k] if k < desk.nexts[F, stage] else UNKNOWN
        if when > now:
            due = min(due, when)
        elif when >= 0.0 and (best_b < 0 or desk.nexts[I, stage] <= desk.nexts[I, best_b]):
            best_b = stage
        if desk.nexts[W, stage] < desk.nexts[I, stage] and (
            best_w < 0 or desk.nexts[W, stage] < desk.nexts[W, best_w]
        ):
            best_w = stage
    if best_f >= 0 and best_b >= 0:
        turns = policy.prefer == BY_TURNS and desk.last[rank] == F
        if policy.prefer == GRADIENT_FIRST or turns:
            return I, best_b, now
        return F, best_f, now
    if best_b >= 0:
        return I, best_b, now
    if best_f >= 0:
        return F, best_f, now
    if best_w >= 0 and (hungry or due - now >= policy.patience * job.weight_s[best_w]):
        return W, best_w, now
    return -1, -1, due


@kernel
def commit(
    kind: int, stage: int, start: float, at: int, pace_s: float, job: Job, desk: Desk
) -> None:
    """Do an action: times, memory, the neighbour's arrival, the entry in the order."""
    rank = job.rank_of[stage]
    microbatch = desk.nexts[kind, stage]
    desk.nexts[kind, stage] += 1
    last = len(job.rank_of) - 1
    end = start
    held = job.held_bytes[stage]
    if kind == F:
        end += job.forward_s[stage]
        desk.level[rank] += held
        desk.flying[rank] += 1
        if stage == 0 and microbatch + 1 < job.m:
            desk.arrive_f[0, microbatch + 1] = start + pace_s
        if stage == last:
            desk.arrive_b[stage, microbatch] = end
        else:
            when = end + job.hop_s[stage]
            desk.arrive_f[stage + 1, microbatch] = when
            other = job.rank_of[stage + 1]
            desk.look[other] = min(desk.look[other], max(when, desk.free[other]))
    elif kind == I:
        end += job.backward_s[stage]
        if job.split < 0.5:
            end += job.weight_s[stage]
            desk.nexts[W, stage] += 1
            desk.level[rank] -= held
        else:
            desk.level[rank] -= held * job.release_frac
        desk.flying[rank] -= 1
        if stage > 0:
            when = end + job.hop_s[stage - 1]
            desk.arrive_b[stage - 1, microbatch] = when
            other = job.rank_of[stage - 1]
            desk.look[other] = min(desk.look[other], max(when, desk.free[other]))
    else:
        end += job.weight_s[stage]
        desk.level[rank] -= held * (1.0 - job.release_frac)
    if kind != W:
        desk.last[rank] = kind
    desk.free[rank] = end
    desk.look[rank] = end
    desk.order[at, 0], desk.order[at, 1] = kind, stage
    desk.order[at, 2], desk.order[at, 3] = microbatch, rank


@kernel
def list_schedule(job: Job, policy: Policy, desk: Desk) -> float:
    """Fill `desk.order`; the makespan, or INF when the policy comes to a stop."""
    ranks = len(job.room_bytes)
    total = len(desk.order)
    at = 0
    while at < total:
        rank = 0
        for other in range(1, ranks):
            if desk.look[other] < desk.look[rank]:
                rank = other
        now = desk.look[rank]
        if now >= INF:
            return INF
        kind, stage, start = choose(rank, now, job, policy, desk)
        if kind < 0:
            desk.look[rank] = start
            continue
        commit(kind, stage, start, at, policy.pace_s, job, desk)
        at += 1
    return float(np.max(desk.free))


def new_desk(job: Job) -> Desk:
    """An empty desk for the job; every stage 0 input is there from the start."""
    stages, ranks = len(job.rank_of), len(job.room_bytes)
    arrive_f = np.full((stages, job.m), UNKNOWN)
    arrive_f[0] = 0.0
    actions = stages * job.m * (3 if job.split > 0.5 else 2)
    return Desk(
        np.zeros((3, stages), np.int64), arrive_f, np.full((stages, job.m), UNKNOWN),
        np.zeros(ranks), np.zeros(ranks), np.zeros(ranks, np.int64),
        np.full(ranks, int(I), np.int64), np.zeros(ranks), np.zeros((actions, 4), np.int64),
    )  # fmt: skip


def policies(job: Job, rounds: int, seed: int = 0) -> Iterator[Policy]:
    """Admissions around the round trip of each rank, with every preference; then random ones."""
    ranks, stages = len(job.room_bytes), len(job.rank_of)
    chunks = stages // ranks
    behind = np.array([np.flatnonzero(job.rank_of == r).min() for r in range(ranks)])
    depth = stages - behind
    work = job.forward_s + job.backward_s + job.weight_s
    pace = float(np.bincount(job.rank_of, weights=work, minlength=ranks).max())
    for stretch in (1.0, 1.25, 1.5, 2.0, 3.0, 1e6):
        for prefer in (GRADIENT_FIRST, FORWARD_FIRST, BY_TURNS):
            for later_first in (1.0, 0.0) if chunks > 1 else (1.0,):
                for patience in (0.0, 0.5, 1.0):
                    for beat in (0.0, 1.0) if chunks > 1 else (0.0,):
                        cap = np.maximum(1.0, np.ceil(depth * stretch))
                        yield Policy(cap, prefer, later_first, patience, beat * pace)
    draw = np.random.default_rng(seed)
    for _ in range(rounds):
        stretch = draw.uniform(0.7, 2.5)
        cap = np.maximum(1.0, np.round(depth * stretch + draw.integers(-1, 3, ranks)))
        beat = float(draw.uniform(0.8, 1.3)) if draw.random() < 0.5 else 0.0
        yield Policy(
            cap, int(draw.integers(3)), float(draw.integers(2)), float(draw.uniform(0, 1.2)),
            beat * pace,
        )  # fmt: skip


def orders(job: Job, rounds: int, keep: int, seed: int = 0) -> list[tuple[float, Schedule]]:
    """The best `keep` different orders of all policies, with the list scheduler's makespans."""
    run = compiled(list_schedule)
    found: dict[float, I64] = {}
    for policy in policies(job, rounds, seed):
        desk = new_desk(job)
        makespan = float(run(job, policy, desk))
        if makespan < INF and makespan not in found:
            found[makespan] = desk.order
    best = sorted(found)[:keep]
    return [(makespan, to_schedule(job, found[makespan])) for makespan in best]


def to_schedule(job: Job, order: I64) -> Schedule:
    """The order as a schedule."""
    whole = job.split < 0.5
    rows = []
    for rank in range(len(job.room_bytes)):
        mine = order[order[:, 3] == rank]
        kind = np.where((mine[:, 0] == I) & whole, B, mine[:, 0])
        rows.append(Row.of(kind, mine[:, 1], mine[:, 2]))
    return from_rows("auto", rows, len(job.rank_of), job.m)


def lower_bound_s(job: Job) -> float:
    """No order is faster than this.

    For each rank: its work cannot begin before the first forward has come down to it, and until the
    first gradient has come up to it there is nothing to do but the forwards that memory holds. Its
    last input gradient ends after all its forwards and input gradients, and after the weight
    gradients that memory does not let wait; the gradient then goes up to stage 0 and is finished
    there. With n microbatches in memory at most, every n-th forward waits for a round trip. And
    bytes times the time that they are held is at most the room times the time that there is.
    """
    stages = len(job.rank_of)
    down = np.concatenate(([0.0], np.cumsum(job.forward_s + job.hop_s)))[:stages]
    up = np.concatenate(([0.0], np.cumsum(job.backward_s + job.hop_s)))[:stages]
    unsplit = job.weight_s if job.split < 0.5 else np.zeros(stages)
    up = up + np.concatenate(([0.0], np.cumsum(unsplit)))[:stages]
    last = stages - 1
    both = job.forward_s + job.backward_s + unsplit
    hops = np.where(np.arange(stages) == last, 0.0, job.hop_s)
    below = np.cumsum((both + 2 * hops)[::-1])[::-1]
    end = job.weight_s[0] if job.split > 0.5 else 0.0
    bound = 0.0
    for rank in range(len(job.room_bytes)):
        mine = np.flatnonzero(job.rank_of == rank)
        work = job.m * float((job.forward_s + job.backward_s + job.weight_s)[mine].sum())
        head = max(
            float(down[mine].min()), _waits_until(job, mine, down, below) - _before(job, mine)
        )
        tail = float(up[mine].min()) + end
        weights = job.m * float(job.weight_s[mine].sum()) if job.split > 0.5 else 0.0
        kept = job.held_bytes[mine] * (1.0 - job.release_frac)
        waiting = weights
        if kept.min() > 0:
            most = np.floor(job.room_bytes[rank] / kept.min() * (1 + 1e-12))
            waiting = min(weights, most * float(job.weight_s[mine].max()))
        bound = max(bound, head + work, head + work - waiting + tail)
        area = job.m * float((job.held_bytes[mine] * below[mine]).sum())
        bound = max(
            bound, float(down[mine].min()) + area / job.room_bytes[rank] + float(up[mine].min())
        )
        for stage in mine:
            trip = float(below[stage])
            least = job.held_bytes[stage]
            if least > 0:
                room = np.floor(job.room_bytes[rank] / least * (1 + 1e-12))
                if room >= 1:
                    rounds = (job.m - 1) // int(room)
                    bound = max(bound, float(down[stage]) + (rounds + 1) * trip + float(up[stage]))
    return bound


def _waits_until(job: Job, mine: I64, down: Array, below: Array) -> float:
    """When the first gradient comes up to a rank with the stages `mine`: to its last one."""
    last = int(mine.max())
    whole = job.weight_s[last] if job.split < 0.5 else 0.0
    return float(down[last] + below[last] - job.backward_s[last] - whole)


def _before(job: Job, mine: I64) -> float:
    """Most seconds of forwards of a rank before any gradient: what its room holds."""
    forward, held = job.forward_s[mine], job.held_bytes[mine]
    most = job.m * float(forward.sum())
    if held.min() <= 0:
        return most
    return min(most, float(job.room_bytes[job.rank_of[mine[0]]] * (forward / held).max()))
