"""Refined stages: against all layouts, under memory limits, and the bounds that prove them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cost.memory_doc import memory_doc
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.schedule import generate
from gangsaw.search.branching import Branching, branch
from gangsaw.search.estimate import evaluate
from gangsaw.search.refine import PlanLayouts, refined
from gangsaw.search.stage_bound import Sequence, chains_s, floor_s
from gangsaw.search.timeline import plan_schedule, stage_times, stage_transfers
from gangsaw.simulate import StageTimes, Transfers
from gangsaw.simulate.loop import execute
from gangsaw.simulate.rerun import Rerun
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

ROOMY = 1e15


def job(model, layers=None, cluster="h100-sxm:64", stack="megatron-core-te", **recipe):
    """A model cut to its first layers, its ends and kinds as they are."""
    spec = load_model(model)
    if layers is not None:
        spec = spec.model_copy(update={"order": spec.order[:layers]})
    return Job(
        model=spec, cluster=load_cluster(cluster), stack=load_stack(stack),
        recipe=Recipe(**{"seq_len": 4096, "global_batch": 64, **recipe}),
    )  # fmt: skip


def plan_of(given, p, v, m, **change):
    dp = given.recipe.global_batch // m
    tp = given.cluster.devices // (p * dp)
    name = "1f1b" if v == 1 else "interleaved"
    fields = {"tp": tp, "pp": p, "vpp": v, "dp": dp, "num_microbatches": m, "schedule": name}
    return Plan(**{**fields, **change})


def layouts_of(layers, stages):
    """All layouts: one layer a stage or more, none needed where an end is."""
    for cuts in itertools.combinations_with_replacement(range(layers + 1), stages - 1):
        counts = tuple(np.diff((0, *cuts, layers)).tolist())
        if all(n >= 1 for n in counts[1:-1]):
            yield counts


def simulated_s(given, plan, counts):
    """The simulated step of a layout, by the ordinary way through documents."""
    ev = evaluate(given, plan.model_copy(update={"stages": counts}))
    pipe = execute(plan_schedule(ev), stage_times(ev), stage_transfers(ev)).makespan_s
    return pipe + ev.cost.dp_comm + ev.cost.optimizer + ev.low.stack.step_overhead_s


CASES = [
    ("equal layers", "llama-3.1-8b", 12, 4, 1, 8, {}),
    ("equal layers, chunks", "llama-3.1-8b", 9, 2, 2, 4, {}),
    ("dense first", "deepseek-v2-lite", 10, 4, 1, 8, {}),
    ("dense first, chunks", "deepseek-v2-lite", 10, 2, 2, 8, {}),
    ("every other routed", "llama-4-maverick-17b-128e", 9, 4, 1, 8, {}),
    ("local and global", "gemma-3-12b", 12, 4, 1, 16, {}),
    ("local and global, chunks", "gemma-3-12b", 9, 2, 2, 4, {}),
    ("vision tower", "qwen2.5-vl-7b", 12, 4, 1, 8, {}),
    ("prediction layer", "deepseek-v3", 12, 4, 1, 8, {}),
    ("few microbatches", "gemma-2-9b", 10, 4, 1, 2, {}),
    ("all recomputed", "gemma-2-9b", 10, 4, 1, 8, {"recompute": "full"}),
    ("split backward", "llama-3.1-8b", 10, 4, 1, 8, {"schedule": "zb-h1"}),
    ("V", "gemma-2-9b", 8, 2, 2, 8, {"schedule": "zb-v"}),
]


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_against_all_layouts(case):
    _, model, layers, p, v, m, change = case
    given = job(model, layers, global_batch=8 * m)
    plan = plan_of(given, p, v, m, **change)
    steps = {c: simulated_s(given, plan, c) for c in layouts_of(layers, p * v)}
    best = min(steps.values())
    found = refined(evaluate(given, plan), ROOMY)
    assert found.after_s == pytest.approx(steps[found.counts], rel=1e-9)
    assert found.after_s <= found.before_s and found.settled
    assert found.before_s == pytest.approx(found.even_s) == pytest.approx(steps[even(given, plan)])
    assert found.after_s <= best * (1.001 if found.proved else 1.01)


def even(given, plan):
    return evaluate(given, plan).counts


def test_vision_tower_in_front():
    """The tower's stage holds the others up until it has fewer layers of the decoder."""
    given = job("qwen2.5-vl-72b", None, "h100-sxm:128", global_batch=256)
    found = refined(evaluate(given, plan_of(given, 8, 1, 128, tp=8, dp=2)), ROOMY)
    assert found.counts[0] < 10 < max(found.counts)
    assert found.after_s < 0.8 * found.even_s
    assert found.devices_saved > 25


def test_dense_layers_first_in_two_chunks():
    given = job("deepseek-v3", None, "h100-sxm:512", seq_len=4096, global_batch=1024)
    plan = plan_of(given, 8, 2, 128, tp=8, dp=8, ep=8)
    ev = evaluate(given, plan)
    found = refined(ev, ROOMY)
    assert sum(found.counts) == 61
    # Three layers of the first are dense and cheap; the last chunk has prediction layer and head.
    assert found.counts[0] >= found.counts[1] and found.counts[-1] < min(found.counts[1:-1])
    assert found.after_s < 0.93 * found.even_s
    best = simulated_s(given, plan, found.counts)
    assert found.after_s == pytest.approx(best, rel=1e-9)
    for source, target in itertools.permutations(range(16), 2):
        counts = list(found.counts)
        counts[source] -= 1
        counts[target] += 1
        if min(counts[1:-1]) >= 1 and counts[source] >= 0:
            assert simulated_s(given, plan, tuple(counts)) >= best * (1 - 1e-3)


def test_each_rank_keeps_its_memory_limit():
    given = job("llama-3.1-8b", 14)
    plan = plan_of(given, 4, 1, 8)
    ev = evaluate(given, plan.model_copy(update={"stages": (2, 3, 4, 5)}))

    def peaks(counts):
        return [s.peak_device_bytes for s in memory_doc(given, plan, counts).per_stage]

    free = refined(ev, ROOMY)
    room = 0.5 * (max(peaks(free.counts)) + max(peaks(ev.counts)))
    room = min(room, 0.999 * max(peaks(free.counts)))
    limits = [max(room, held) for held in peaks(ev.counts)]
    found = refined(ev, room)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(peaks(found.counts), limits, strict=True))
    allowed = [
        c for c in layouts_of(14, 4)
        if all(a <= b * (1 + 1e-9) for a, b in zip(peaks(c), limits, strict=True))
    ]  # fmt: skip
    best = min(simulated_s(given, plan, c) for c in allowed)
    assert free.after_s < found.after_s < found.before_s
    assert found.after_s <= best * 1.01


def test_nothing_to_lay_out():
    given = job("llama-3.1-8b")
    alone = Plan(tp=8, dp=8, num_microbatches=8)
    assert refined(evaluate(given, alone), ROOMY) is None
    assert refined(evaluate(given, plan_of(given, 4, 1, 8, schedule="zb-h2")), ROOMY) is None


seconds = st.floats(0.05, 2.0)
KINDS = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    KINDS, st.lists(st.integers(0, 1), min_size=6, max_size=8), st.tuples(seconds, seconds),
    st.sampled_from([("1f1b", 3, 1), ("gpipe", 3, 1), ("zb-h1", 3, 1), ("interleaved", 2, 2),
                     ("bfs", 2, 2), ("zb-v", 2, 2)]),
    st.integers(2, 8), st.sampled_from([0.0, 0.1]),
)  # fmt: skip
def test_bounds_hold_for_all_layouts(kinds, order, ends, named, m, hop):
    name, p, v = named
    if name == "interleaved" and m % p:
        m += 1
    schedule = generate(name, p, m, v)
    transfers = Transfers.of(p * v, hop, 1.0, blocking=True) if hop else None
    layers = np.array([kinds[k % len(kinds)] for k in order])
    first, last = np.array([ends[0], ends[0], 0.0]), np.array([ends[1], ends[1], ends[1]])
    what = Sequence(layers, first, last, np.array([0.01, 0.02, 0.0]), hop, hop > 0.0)
    rerun, chains, steps = Rerun(schedule, transfers), [], []
    for counts in layouts_of(len(layers), p * v):
        edges = np.cumsum((0, *counts))
        held = np.array([layers[a:b].sum(axis=0) for a, b in itertools.pairwise(edges)]).T
        held += what.each[:, None]
        held[:, 0] += first
        held[:, -1] += last
        times = np.vstack((held, held[1] + held[2]))
        steps.append(rerun.makespan_s(times))
        plain = execute(schedule, StageTimes.of(p * v, *held), transfers, interpreted=True)
        assert steps[-1] == pytest.approx(plain.makespan_s, rel=1e-12)
        chains.append(rerun.critical(steps[-1]))
        lasts = [float((each.counts * times).sum()) + each.other_s for each in chains]
        assert max(lasts) <= steps[-1] * (1 + 1e-9) and lasts[-1] == pytest.approx(steps[-1])
    best = min(steps)
    assert floor_s(what, schedule, steps[0]) <= best * (1 + 1e-9)
    assert chains_s(what, chains[:20], steps[0]) <= best * (1 + 1e-9)
    assert floor_s(what, schedule, steps[0]) >= 0.5 * best


def test_every_layer_of_its_own_kind():
    """Stages are told apart by their layers even where each layer is of another kind."""
    spec = load_model("llama-3.1-8b")
    kinds = tuple(
        spec.kinds[0].model_copy(
            update={
                "name": f"layer {i}",
                "mlp": spec.kinds[0].mlp.model_copy(update={"ffn": 4096 + 1024 * (i * 7 % 17)}),
            }
        )
        for i in range(40)
    )
    given = job("llama-3.1-8b")
    model = spec.model_copy(update={"kinds": kinds, "order": tuple(range(40))})
    given = given.model_copy(update={"model": model})
    plan = plan_of(given, 4, 1, 8)
    found = refined(evaluate(given, plan), ROOMY)
    assert found.after_s == pytest.approx(simulated_s(given, plan, found.counts), rel=1e-9)
    assert found.after_s < found.before_s


@pytest.mark.parametrize(("model", "n", "p", "v", "m"), [
    ("llama-4-maverick-17b-128e", 15, 3, 3, 9), ("gemma-3-12b", 13, 3, 3, 24),
    ("deepseek-v2-lite", 13, 3, 3, 9), ("gemma-2-9b", 13, 4, 2, 12), ("deepseek-v3", 13, 4, 2, 32),
])  # fmt: skip
def test_unequal_layers_in_several_chunks_are_laid_out_best(model, n, p, v, m):
    """Of thousands of layouts none is faster, though many moves lie between it and the start."""
    given = job(model, n, f"h100-sxm:{8 * p}", global_batch=m)
    ev = evaluate(given, plan_of(given, p, v, m, tp=8, dp=1))
    layouts, rerun = PlanLayouts(ev, ROOMY), Rerun(plan_schedule(ev), stage_transfers(ev))
    steps = [
        rerun.makespan_s(layouts.times(counts)) + layouts.rest_s(counts)
        for counts in layouts_of(n, p * v)
    ]
    found = refined(ev, ROOMY)
    assert len(steps) > 1_000
    assert found.after_s == pytest.approx(min(steps), rel=1e-3)
    assert found.before_s > found.after_s
    assert found.proved == (found.gap_frac == 0.0)
    assert min(steps) >= found.after_s * (1.0 - found.gap_frac - 1e-3)


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_branch_and_bound_against_all_layouts(case):
    """From the slowest layout and its chain alone: it ends, and at the best of all that fit."""
    _, model, layers, p, v, m, change = case
    given = job(model, layers, global_batch=8 * m)
    ev = evaluate(given, plan_of(given, p, v, m, **change))
    layouts, rerun = PlanLayouts(ev, ROOMY), Rerun(plan_schedule(ev), stage_transfers(ev))
    what = layouts.sequence()
    assert what is not None and what.private
    many = list(layouts_of(layers, p * v))
    steps = {c: rerun.makespan_s(layouts.times(c)) + layouts.rest_s(c) for c in many}
    worst = max(steps, key=steps.get)
    banned = set(sorted(steps, key=steps.get)[:2])

    def simulate(counts):
        return steps[counts], rerun.critical(rerun.makespan_s(layouts.times(counts)))

    for fits in (lambda c: True, lambda c: c not in banned):
        bounds = Branching(what, layouts.lowest_rest_s(), [simulate(worst)[1]])
        proof = branch(bounds, (worst, steps[worst]), simulate, fits, len(many))
        allowed = [s for c, s in steps.items() if fits(c)]
        assert proof.complete and fits(proof.counts)
        assert proof.step_s <= min(allowed) * (1 + 1.001e-3)
        assert proof.simulated < len(many)
        assert bounds.floor_s(proof.step_s) <= min(steps.values()) * (1 + 1e-9)
