"""The best stages for a finished plan, by the step that is simulated.

The search lays layers out by closed forms. Here the plan's own schedule runs on its own stage
times, with the transfers between stages, and layers move to other stages as long as the step gets
faster and every rank stays inside its memory (`search.descent`); a lower bound over all layouts
(`search.stage_bound`) says when none can be better. A vision tower stays on the first stage and
layers of multi-token prediction on the last, where the cost formulas have them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from gangsaw.cost.layout import default_counts
from gangsaw.cost.lower import end_layers, kind_count, rank_of_chunk
from gangsaw.cost.memory import rank_memory
from gangsaw.cost.memory_layers import end_memory
from gangsaw.cost.step import T_DENSE, T_EXPERT, rank_profiles
from gangsaw.cost.types import Array, Loads, RankLoad
from gangsaw.schedule.actions import I64
from gangsaw.search.branching import Branching, branch
from gangsaw.search.descent import TOLERANCE, Counts, Descent, descend
from gangsaw.search.estimate import Evaluated, in_the_loop
from gangsaw.search.stage_bound import Sequence, chains_s, floor_s
from gangsaw.search.timeline import ChunkCosts, named_schedule, stage_transfers
from gangsaw.simulate.rerun import Chain, Rerun
from gangsaw.spec.plan import OWN_FILES

WORK = 1_500_000
"""Actions run for one plan at most, whatever the budget of layouts."""
MOST_KNOWN = 1024


@dataclass(frozen=True)
class Refined:
    """Layers of each chunk, and what the simulated step was, is, and is at equal counts.

    Seconds of a whole step: the pipeline from the event loop, the rest (gradients, optimizer, host)
    from the closed form. `proved`: no layout of these layers that every rank holds is more than
    0.1 % faster (by a bound over all, else by branch and bound); `gap_frac`: where that was not
    shown, no layout's step is shorter by more. `settled`: no move of one layer to another stage
    that was looked at makes it faster. `devices_saved`: devices that equal counts would need on
    top for the same rate.
    """

    counts: Counts
    before_s: float
    after_s: float
    even_s: float
    proved: bool
    gap_frac: float
    settled: bool
    simulated: int
    devices_saved: float

    @property
    def gain_frac(self) -> float:
        """What the step loses, as a fraction of what it was."""
        return 1.0 - self.after_s / self.before_s


def refined(ev: Evaluated, room_bytes: float, budget: int = 80) -> Refined | None:
    """The fastest layout found for a plan whose ranks may hold `room_bytes` each.

    A rank that holds more already may keep that. `budget`: layouts simulated at most. None where
    there is nothing to lay out, or the schedule is not a fixed order of its stages.
    """
    plan = ev.plan
    if not in_the_loop(plan) or plan.schedule.startswith(OWN_FILES):
        return None
    layouts = PlanLayouts(ev, room_bytes)
    schedule = named_schedule(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp)
    rerun = Rerun(schedule, stage_transfers(ev))
    pipe_s, what = rerun.makespan_s(layouts.times(ev.counts)), layouts.sequence()
    before_s = pipe_s + layouts.rest_s(ev.counts)
    floor = 0.0 if what is None else floor_s(what, schedule, pipe_s)
    most = min(budget, max(4, WORK // schedule.actions))
    found = descend(layouts, rerun, ev.counts, floor + layouts.least_rest_s(ev.counts), most)
    even = default_counts(ev.job.model.layers, plan.pp * plan.vpp)
    if len(layouts.radix) > 1 and found.step_s > floor + layouts.least_rest_s(found.counts):
        found = _from_elsewhere(layouts, rerun, found, (even, even[::-1]), floor, most)
    least_s = layouts.least_rest_s(found.counts)
    if what is not None and what.private and found.step_s > (floor + least_s) * (1 + TOLERANCE):
        floor = max(floor, chains_s(what, found.chains, found.makespan_s))
    proved = found.step_s <= (floor + least_s) * (1 + TOLERANCE)
    unequal = len(layouts.radix) > 1 or layouts.vision or layouts.mtp
    if what is not None and what.private and not proved and unequal and layouts.chunks > plan.pp:
        more = min(2 * budget, max(4, WORK // schedule.actions))
        found, proved, lowest_s = _branched(layouts, rerun, found, what, more)
        floor = max(floor, lowest_s - least_s)
    even_s = before_s
    if even != ev.counts:
        even_s = rerun.makespan_s(layouts.times(even)) + layouts.rest_s(even)
    scale = ev.cost.step / before_s  # a site's steps
    return Refined(
        found.counts, float(scale * before_s), float(scale * found.step_s), float(scale * even_s),
        bool(proved), 0.0 if proved else max(0.0, 1.0 - float((floor + least_s) / found.step_s)),
        found.settled, found.simulated,
        float(devices_saved(even_s, found.step_s, plan.devices)),
    )  # fmt: skip


def _from_elsewhere(
    layouts: PlanLayouts, rerun: Rerun, found: Descent, starts: tuple[Counts, ...], floor_s: float,
    most: int,
) -> Descent:  # fmt: skip
    """The best of descents from other starts too: kinds that alternate leave valleys between."""
    for start in dict.fromkeys(starts):
        if start != found.counts and layouts.fits(start):
            other = descend(layouts, rerun, start, floor_s, most)
            chains = [*found.chains, *other.chains]
            many = found.simulated + other.simulated
            better = other if other.step_s < found.step_s else found
            found = replace(better, chains=chains, simulated=many)
    return found


def _branched(
    layouts: PlanLayouts, rerun: Rerun, found: Descent, what: Sequence, most: int
) -> tuple[Descent, bool, float]:
    """The best of all layouts from the critical paths met on the way down, whether it is, and what
    no layout goes below."""
    paces: dict[Counts, float] = {}

    def simulate(counts: Counts) -> tuple[float, Chain]:
        paces[counts] = rerun.makespan_s(layouts.times(counts))
        return paces[counts] + layouts.rest_s(counts), rerun.critical(paces[counts])

    bounds = Branching(what, layouts.lowest_rest_s(), list(found.chains))
    proof = branch(bounds, (found.counts, found.step_s), simulate, layouts.fits, most)
    better = replace(
        found, counts=proof.counts, step_s=proof.step_s,
        makespan_s=paces.get(proof.counts, found.makespan_s),
        simulated=found.simulated + proof.simulated,
        settled=found.settled or proof.complete,
    )  # fmt: skip
    return better, proof.complete, bounds.floor_s(proof.step_s)


def devices_saved(before_s: float, after_s: float, devices: int) -> float:
    """Devices that would be needed on top, without the better layout, for the same rate."""
    return devices * (before_s / after_s - 1.0)


class PlanLayouts:
    """Layouts of one plan: what each stage takes, whether ranks can hold it (`descent.Layouts`).

    A stage is known by the layers of each kind on it, written as one number, and by its ends.
    """

    def __init__(self, ev: Evaluated, room_bytes: float) -> None:
        plan, model, low = ev.plan, ev.job.model, ev.low
        self.ev, self.costs = ev, ChunkCosts(ev)
        self.kinds, self.chunks = kind_count(model), plan.pp * plan.vpp
        self.mtp, self.vision = end_layers(model)
        self.rank_of = np.array(
            [rank_of_chunk(c, plan.pp, plan.schedule) for c in range(self.chunks)], np.int64
        )
        order = np.array(model.order, np.int64)
        radix = [(model.layers + 1) ** k for k in range(len(model.kinds))]
        # Many kinds make numbers that only Python's own integers hold.
        self.exact = np.dtype(np.int64 if radix[-1] < 2**50 else object)
        self.radix = np.array(radix, self.exact)
        self.code = np.concatenate((np.zeros(1, self.exact), np.cumsum(self.radix[order])))
        self._places: dict[int, int] = {}
        self._table: Array = np.zeros((4, 0))
        self._ends = end_memory(low.ends, self.costs.cut, float(plan.pp), low.memory)
        self._mass, self._end_mass = self._weigh(order)
        self._known: dict[Counts, I64] = {}
        self._rests: dict[tuple[int, bool, bool], float] = {}
        self._bytes: dict[tuple[int, int], float] = {}
        self._room = np.full(plan.pp, room_bytes)
        self._room = np.maximum(self._room, self._held(ev.counts))
        self.layer_s = self._typical(order)

    @property
    def least(self) -> Counts:
        """One layer a stage, but none is needed where an end is."""
        return (0, *(1,) * (self.chunks - 2), 0)

    def times(self, counts: Counts) -> Array:
        """[4, stages] seconds of F, I, W and B."""
        codes = 4 * self._codes(counts)  # a new array
        codes[0] += 1
        codes[-1] += 2
        known = self._places
        listed = codes.tolist()
        if not known.keys() >= set(listed):
            self._learn(sorted(set(listed) - known.keys()))
        return self._table[:, [known[code] for code in listed]]

    def fits(self, counts: Counts) -> bool:
        """Whether each rank holds its stages."""
        return bool(np.all(self._held(counts) <= self._room * (1 + 1e-12)))

    def rest_s(self, counts: Counts) -> float:
        """Seconds of the step outside the pipeline, those of the rank with most parameters."""
        fullest = int(np.argmax(self._params(counts)))
        on = int(self._codes(counts)[self.rank_of == fullest].sum())
        key = on, fullest == 0, fullest == int(self.rank_of[-1])
        if key not in self._rests:
            self._rests[key] = self.costs.closed_form_s(counts)[1]
        return self._rests[key]

    def least_rest_s(self, counts: Counts) -> float:
        """What `rest_s` would be if all ranks had the same number of parameters: it falls no
        faster than the parameters of the fullest rank do.
        """
        held = self._params(counts)
        return self.rest_s(counts) * float(held.mean() / held.max())

    def lowest_rest_s(self) -> float:
        """Seconds outside the pipeline that no layout goes below."""
        return self.least_rest_s(self.ev.counts)

    def _params(self, counts: Counts) -> Array:
        """[ranks] trained parameters of each rank, the ends included."""
        edges = self._mass[[0, *accumulate(counts)]]
        held = np.bincount(self.rank_of, weights=edges[1:] - edges[:-1])
        held[0] += self._end_mass[0]
        held[self.rank_of[-1]] += self._end_mass[1]
        return held.astype(np.float64)

    def _weigh(self, order: I64) -> tuple[Array, Array]:
        """[layers + 1] trained parameters of the first layers, and [2] of both ends."""
        costs, kinds = self.costs, len(self.radix)
        one = np.vstack((np.eye(kinds), np.zeros((2, kinds))))
        first, last = np.zeros(kinds + 2), np.zeros(kinds + 2)
        first[kinds] = last[kinds + 1] = 1.0
        rows = rank_profiles(
            self._loads(one, first, last), costs.layers, costs.mems, costs.ends, self.ev.low.ends,
            costs.cut.tp, costs.state.train_ends,
        )  # fmt: skip
        each = rows[:, T_DENSE] + rows[:, T_EXPERT]
        return np.concatenate(([0.0], np.cumsum(each[order]))), each[kinds:]

    def sequence(self) -> Sequence | None:
        """What is laid out; None where a layer's seconds depend on its neighbours."""
        state, transfers = self.costs.state, stage_transfers(self.ev)
        if state.zero >= 2.0 or state.recompute_layers > 0.0 or state.offload_activations > 0.0:
            return None
        one = np.eye(len(self.radix))
        singles = self._rows(one, 0.0, 0.0)[:3]
        each = np.maximum(0.0, 2.0 * singles - self._rows(2.0 * one, 0.0, 0.0)[:3])
        none = np.zeros((1, len(self.radix)))
        constant = each.min(axis=1)
        hop = 0.0
        blocking = transfers is not None and transfers.blocking
        if transfers is not None:
            hop = float((transfers.bytes_each / transfers.bytes_per_s)[0])
        return Sequence(
            (singles - each)[:, np.array(self.ev.job.model.order)].T,
            self._rows(none, 1.0, 0.0)[:3, 0] - constant,
            self._rows(none, 0.0, 1.0)[:3, 0] - constant,
            constant, hop, blocking,
        )  # fmt: skip

    def _codes(self, counts: Counts) -> I64:
        found = self._known.get(counts)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            edges = self.code[[0, *accumulate(counts)]]
            found = self._known[counts] = edges[1:] - edges[:-1]
        return found

    def _layers(self, code: int) -> list[float]:
        """Layers of each decoder kind from their number."""
        found = []
        for _ in self.radix:
            code, here = divmod(code, self.ev.job.model.layers + 1)
            found.append(float(here))
        return found

    def _learn(self, codes: list[int]) -> None:
        new: list[Array] = []
        for code in codes:
            whole, ends = divmod(code, 4)
            self._places[code] = self._table.shape[1] + len(new)
            new.append(
                self._rows(np.array([self._layers(whole)]), float(ends % 2), float(ends // 2))
            )
        self._table = np.concatenate((self._table, *new), axis=1)

    def _rows(self, layers: Array, first: float, last: float) -> Array:
        """[4, rows] seconds of F, I, W, B of stages with these layers, [rows, decoder kinds]."""
        one = np.ones(len(layers))
        found = self.costs.rows(self._loads(layers, first * one, last * one))
        found[3] = found[1] + found[2]
        return found

    def _loads(self, layers: Array, first: Array, last: Array) -> Loads:
        """Chunks with these layers, [rows, decoder kinds]; the first and last ones have an end."""
        held = np.zeros((len(layers), self.kinds))
        held[:, : layers.shape[1]] = layers
        if self.vision:
            held[:, self.kinds - 1] += first * self.vision
        if self.mtp:
            held[:, layers.shape[1]] += last * self.mtp
        one = np.ones(len(layers))
        return Loads(held, layers.sum(axis=1), first, last * (1.0 + self.mtp), one, one, one)

    def _typical(self, order: I64) -> Array:
        """[4] seconds that a layer adds to a stage, the mean over the decoder."""
        count = np.array([np.bincount(order, minlength=len(self.radix))], np.float64)
        whole, more = self._rows(count, 0.0, 0.0)[:, 0], self._rows(2 * count, 0.0, 0.0)[:, 0]
        return (more - whole) / float(count.sum())

    def _held(self, counts: Counts) -> Array:
        """[ranks] device bytes of each rank at its peak."""
        on = self._on_ranks(counts).tolist()
        return np.array([self._peak(rank, code) for rank, code in enumerate(on)])

    def _on_ranks(self, counts: Counts) -> I64:
        """[ranks] the number of the layers on each rank."""
        on = np.zeros(self.ev.plan.pp, self.exact)
        np.add.at(on, self.rank_of, self._codes(counts))
        return on

    def _peak(self, rank: int, code: int) -> float:
        key = rank, code
        if key not in self._bytes:
            low, costs = self.ev.low, self.costs
            layers = np.zeros(self.kinds)
            layers[: len(self.radix)] = self._layers(code)
            first, last = float(rank == 0), float(rank == self.rank_of[-1])
            if self.vision:
                layers[self.kinds - 1] += first * self.vision
            if self.mtp:
                layers[len(self.radix)] += last * self.mtp
            load = RankLoad(
                float(rank), float(self.ev.plan.pp), layers, layers, first, last, last * self.mtp
            )
            self._bytes[key] = rank_memory(
                load, costs.mems, self._ends, costs.state, low.memory
            ).device
        return self._bytes[key]
