"""Every plan computes what one process computes: loss and gradients within 1e-6 in fp32."""

from __future__ import annotations

import itertools

import pytest
from small import config, differences, tiny

from gangsaw.spec import Plan

TOLERANCE = 1e-6
FLAT = ("gpipe", "1f1b", "zb-h1", "zb-h2")
LOOPED = ("interleaved", "bfs", "izb")
FOLDED = ("zb-v", "v-half", "v-min", "dualpipe-v")

PLANS = {
    "one": (Plan(num_microbatches=3, mbs=2), {}),
    "tp2": (Plan(tp=2, num_microbatches=2), {}),
    "tp2 no sp": (Plan(tp=2, num_microbatches=2, sequence_parallel=False), {}),
    "tp2 tied, norm of heads": (Plan(tp=2, num_microbatches=2), {"tied": True, "qk": "head"}),
    "tp2 no sp tied, norm of heads": (Plan(tp=2, sequence_parallel=False), {"tied": True, "qk": "head"}),
    "tp2 biases and window": (Plan(tp=2, num_microbatches=2), {"bias": True, "window": 5}),
    "tp4": (Plan(tp=4), {"heads": 8}),
    "dp2 zero0": (Plan(dp=2, num_microbatches=2, zero=0), {"tied": True}),
    "dp2 zero1": (Plan(dp=2, num_microbatches=2, zero=1), {"tied": True}),
    "dp2 zero2": (Plan(dp=2, num_microbatches=2, zero=2), {}),
    "dp2 zero3": (Plan(dp=2, num_microbatches=2, zero=3), {}),
    "dp4 zero3 in groups of 2": (Plan(dp=4, num_microbatches=2, zero=3, shard_group=2), {}),
    "tp2 dp2 zero3": (Plan(tp=2, dp=2, zero=3), {}),
    "tp2 dp2 full recompute": (Plan(tp=2, dp=2, recompute="full"), {}),
    "tp2 selective recompute": (Plan(tp=2, recompute="selective"), {}),
    "tp2 dp2 other rank order": (Plan(tp=2, dp=2, rank_order="dp-tp-pp-cp-ep"), {}),
    "moe": (Plan(num_microbatches=2), {"moe": True}),
    "moe dp2 zero3": (Plan(dp=2, zero=3), {"moe": True}),
    "moe tp2": (Plan(tp=2, etp=2), {"moe": True}),
    "moe tp2 no sp": (Plan(tp=2, etp=2, sequence_parallel=False), {"moe": True}),
    "pp2 uneven": (Plan(pp=2, num_microbatches=4, stages=(3, 1)), {}),
    "pp2 empty last stage": (Plan(pp=2, num_microbatches=4, mbs=2, stages=(4, 0)), {}),
    "pp2 empty first stage, tied": (Plan(pp=2, num_microbatches=4, stages=(0, 4)), {"tied": True}),
    "pp4 empty stages in the middle": (Plan(pp=4, num_microbatches=4, stages=(0, 3, 0, 1)), {}),
    "pp4 split backward, empty stages": (Plan(pp=4, num_microbatches=5, schedule="zb-h1", stages=(1, 0, 3, 0)), {"tied": True}),
    "pp4 fewer microbatches than stages": (Plan(pp=4, num_microbatches=2), {}),
    "pp2 full recompute": (Plan(pp=2, num_microbatches=3, recompute="full", recompute_layers=1), {}),
    "pp2 split backward, recompute": (Plan(pp=2, num_microbatches=3, schedule="zb-h1", recompute="full"), {}),
    "pp2 dp2 zero0": (Plan(pp=2, dp=2, num_microbatches=3, zero=0), {"tied": True}),
    "pp2 dp2 zero3": (Plan(pp=2, dp=2, num_microbatches=3, zero=3), {"tied": True}),
    "pp2 dp2 zero3 split backward": (Plan(pp=2, dp=2, num_microbatches=3, zero=3, schedule="zb-h1"), {}),
    "pp2 tp2 dp2": (Plan(pp=2, tp=2, dp=2, num_microbatches=2), {"tied": True}),
    "pp2 tp2 dp2 zb-v": (Plan(pp=2, vpp=2, tp=2, dp=2, num_microbatches=4, schedule="zb-v"), {}),
    "pp2 tp2 dp2 dualpipe-v": (Plan(pp=2, vpp=2, tp=2, dp=2, num_microbatches=4, schedule="dualpipe-v"), {}),
    "pp2 tp2 moe": (Plan(pp=2, tp=2, etp=2, num_microbatches=2), {"moe": True}),
}  # fmt: skip
PLANS["pp2 auto"] = (Plan(pp=2, num_microbatches=4, schedule="auto"), {})
PLANS["pp2 x2 auto uneven tied"] = (
    Plan(pp=2, vpp=2, num_microbatches=4, schedule="auto", stages=(1, 0, 2, 1)), {"tied": True},
)  # fmt: skip
for name in FLAT:
    PLANS[f"pp2 {name}"] = (Plan(pp=2, num_microbatches=4, schedule=name), {})
    PLANS[f"pp4 {name} uneven tied"] = (
        Plan(pp=4, num_microbatches=6, schedule=name, stages=(2, 1, 1, 0)), {"tied": True},
    )  # fmt: skip
for name in LOOPED + FOLDED:
    PLANS[f"pp2 x2 {name}"] = (Plan(pp=2, vpp=2, num_microbatches=4, schedule=name), {})
    PLANS[f"pp2 x2 {name} uneven tied"] = (
        Plan(pp=2, vpp=2, num_microbatches=4, schedule=name, stages=(0, 2, 1, 1)), {"tied": True},
    )  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_plan_equals_one_process(pool, case):
    plan, model = PLANS[case]
    loss, grads = differences(pool, config(plan, tiny(**model)))
    assert loss <= TOLERANCE
    assert grads <= TOLERANCE


def _long() -> dict[str, tuple[Plan, dict]]:
    table = {}
    for name, (pp, tp, dp), zero, tied in itertools.product(
        FLAT + LOOPED + FOLDED,
        [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 2, 2), (2, 1, 4)],
        (0, 1, 3),
        (False, True),
    ):
        if zero != 1 and dp == 1:
            continue
        vpp = 1 if name in FLAT else 2
        plan = Plan(pp=pp, tp=tp, dp=dp, vpp=vpp, zero=zero, num_microbatches=2 * pp, schedule=name)
        table[f"{name} pp{pp} tp{tp} dp{dp} zero{zero} {'tied' if tied else 'untied'}"] = (
            plan,
            {"tied": tied, "layers": 9},
        )
    return table


LONG = _long()


@pytest.mark.soak
@pytest.mark.parametrize("case", LONG)
def test_long_matrix(pool, case):
    plan, model = LONG[case]
    loss, grads = differences(pool, config(plan, tiny(**model)))
    assert loss <= TOLERANCE
    assert grads <= TOLERANCE


def test_a_wrong_gradient_is_seen(pool):
    """The comparison itself can fail: another seed is another model."""
    cfg = config(Plan(tp=2))
    loss, grads = single_of_other_seed(pool, cfg)
    assert loss > 1e-4
    assert grads > 1e-4


def single_of_other_seed(pool, cfg):
    from small import one_backward, single

    loss, grads = single(cfg.model_copy(update={"seed": 1}))
    got, mine = pool.run(2, one_backward, cfg)[0]
    return abs(got - loss), max(float((mine[n] - grads[n]).abs().max()) for n in mine)
