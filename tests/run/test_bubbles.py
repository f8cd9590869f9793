"""Idle time of real pipelines against the simulated ones: torch's runtime over sleeping stages.

Sleeping needs no processor. What the runtime itself spends, and waits for a processor, stay the
same when stages sleep longer: a share that load spoiled is measured again with longer sleeps.
"""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gangsaw.run.parallel import make_place
from gangsaw.run.pipeline import make_runtime
from gangsaw.run.schedule import schedule_rows, stage_owners
from gangsaw.schedule import generate
from gangsaw.simulate import StageTimes, simulate
from gangsaw.spec import Plan

pytestmark = pytest.mark.soak

FORWARD_S = INPUT_S = WEIGHT_S = 0.1
AWAKE = [1.0]
"""How much of the seconds is slept: 0 in the warm-up step."""
LONGER = (1.0, 1.0, 2.0, 4.0, 8.0)
"""Sleeps of the tries, over the seconds above."""
LOG: list[tuple[float, float]] = []


def _sleep(seconds: float) -> None:
    begun = time.perf_counter()
    time.sleep(seconds * AWAKE[0])
    LOG.append((begun, time.perf_counter()))


class _Through(torch.autograd.Function):
    """Passes its input on; sleeps in forward, and as long as the input gradient takes in backward."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        _sleep(FORWARD_S * scale)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        _sleep(INPUT_S * ctx.scale)
        return grad.clone(), None


class _Weight(torch.autograd.Function):
    """A weight's contribution, whose gradient takes as long as a weight gradient."""

    @staticmethod
    def forward(ctx, w, scale):
        ctx.scale = scale
        return w.clone()

    @staticmethod
    def backward(ctx, grad):
        _sleep(WEIGHT_S * ctx.scale)
        return grad.clone(), None


class Sleeper(nn.Module):
    """A stage that sleeps; `scale` is its size against the others."""

    def __init__(self, first: bool, last: bool, scale: float) -> None:
        super().__init__()
        self.first, self.last, self.scale = first, last, scale
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        # A root input needs no gradient; the weight then carries the whole backward.
        x = x + 0.0 * self.weight.sum() if self.first else x
        return _Through.apply(x, self.scale) + _Weight.apply(self.weight, self.scale)


def sleeping_run(
    plan: Plan, scales: tuple[float, ...], longer: float
) -> tuple[float, float, float]:
    """First and last moment of work on this rank in the measured step, and its seconds of work."""
    place = make_place(plan, torch.device("cpu"))
    rows = schedule_rows(plan, len(scales))
    owners = stage_owners(rows, len(scales))
    numbers = [s for s, r in enumerate(owners) if r == place.pp_rank]
    stages = [Sleeper(s == 0, s == len(scales) - 1, scales[s]) for s in numbers]
    example = torch.empty(1, 4, device="meta", requires_grad=True)
    root = torch.empty(1, 4, device="meta")
    runtime = make_runtime(
        stages,
        numbers,
        place,
        (root, example, example),
        rows,
        lambda out, target: (out - target).sum(),
    )
    x = torch.ones(plan.num_microbatches, 4)
    for AWAKE[0] in (0.0, longer):
        dist.barrier()
        LOG.clear()
        kwargs = {"target": x, "losses": []} if any(s.last for s in stages) else {}
        runtime.step(
            *((x,) if any(s.first for s in stages) else ()), return_outputs=False, **kwargs
        )
    return min(a for a, _ in LOG), max(b for _, b in LOG), sum(b - a for a, b in LOG)


def measured_bubble(pool, plan: Plan, scales: tuple[float, ...], want: float) -> float:
    """The nearest share of a few tries; the first one that is within 2 points ends them."""
    nearest = 1.0
    for longer in LONGER:
        found = pool.run(plan.pp, sleeping_run, plan, scales, longer)
        begin, end = min(f[0] for f in found), max(f[1] for f in found)
        share = 1.0 - sum(f[2] for f in found) / (plan.pp * (end - begin))
        nearest = min(nearest, share)  # load can only add idle time
        if abs(nearest - want) < 0.02:
            break
    return nearest


def predicted_bubble(plan: Plan, scales: tuple[float, ...]) -> float:
    import numpy as np

    schedule = generate(plan.schedule, plan.pp, plan.num_microbatches, plan.vpp)
    each = np.asarray(scales)
    times = StageTimes.of(len(scales), FORWARD_S * each, INPUT_S * each, WEIGHT_S * each)
    return simulate(schedule, times).bubble_frac


EVEN = {
    "gpipe": Plan(pp=4, num_microbatches=8, schedule="gpipe"),
    "1f1b": Plan(pp=4, num_microbatches=8, schedule="1f1b"),
    "zb-h1": Plan(pp=4, num_microbatches=8, schedule="zb-h1"),
    "interleaved": Plan(pp=4, vpp=2, num_microbatches=8, schedule="interleaved"),
    "zb-v": Plan(pp=4, vpp=2, num_microbatches=8, schedule="zb-v"),
    "1f1b on 8": Plan(pp=8, num_microbatches=8, schedule="1f1b"),
}


def test_bubble_shares_and_their_order(pool):
    """Within 3 points of the simulation, and plans in the right order where that tells them apart."""
    shares = {}
    for name, plan in EVEN.items():
        scales = (1.0 / plan.vpp,) * (plan.pp * plan.vpp)
        want = predicted_bubble(plan, scales)
        shares[name] = (measured_bubble(pool, plan, scales, want), want)
    for name, (got, want) in shares.items():
        assert abs(got - want) < 0.03, (name, got, want)
    order = sorted(shares, key=lambda n: shares[n][1])
    for a, b in itertools.pairwise(order):
        if shares[b][1] - shares[a][1] > 0.03:
            assert shares[a][0] < shares[b][0], (a, b, shares)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 1.0), (2.0, 1.0, 1.0, 0.5)])
def test_uneven_stages(pool, scales):
    plan = Plan(pp=4, num_microbatches=8)
    want = predicted_bubble(plan, scales)
    assert abs(measured_bubble(pool, plan, scales, want) - want) < 0.03
