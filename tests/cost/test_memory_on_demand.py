"""Gradients made in backward, as torch makes them: what a rank holds when."""

from __future__ import annotations

import pytest

from gangsaw.cost.lower import lower
from gangsaw.cost.memory_doc import rank_memories
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Job, Plan, Recipe
from gangsaw.units import GIB

# Traced by torch's MemTracker on fake tensors (torch 2.13, `run.oracle`), models shortened to the
# number of layers: GiB allocated at the peak of forward and backward.
TRACED = {
    "8b 4 layers fsdp 8": ("llama-3.1-8b", 4, Plan(dp=8, zero=3, num_microbatches=2), 2048, 0, 9.093),
    "8b 8 layers fsdp 8 full": (
        "llama-3.1-8b", 8, Plan(dp=8, zero=3, num_microbatches=2, recompute="full"), 4096, 0, 12.436,
    ),
    "8b 8 layers tp 2 fsdp 4": (
        "llama-3.1-8b", 8, Plan(dp=4, tp=2, zero=3, num_microbatches=2), 2048, 0, 9.352,
    ),
    "70b 8 layers tp 8 fsdp 8 full": (
        "llama-3.1-70b", 8, Plan(dp=8, tp=8, zero=3, num_microbatches=2, recompute="full"), 8192, 0,
        4.936,
    ),
    "70b 16 layers pp 4, first": (
        "llama-3.1-70b", 16, Plan(dp=2, tp=8, pp=4, zero=3, num_microbatches=4), 4096, 0, 15.285,
    ),
    "70b 16 layers pp 4, last": (
        "llama-3.1-70b", 16, Plan(dp=2, tp=8, pp=4, zero=3, num_microbatches=4), 4096, 3, 8.545,
    ),
    "405b 16 layers pp 8 full, first": (
        "llama-3.1-405b", 16, Plan(dp=4, tp=8, pp=8, zero=3, num_microbatches=8, recompute="full"),
        8192, 0, 20.747,
    ),
    "405b 16 layers pp 8 full, second": (
        "llama-3.1-405b", 16, Plan(dp=4, tp=8, pp=8, zero=3, num_microbatches=8, recompute="full"),
        8192, 1, 9.591,
    ),
    "405b 16 layers pp 8 full, last": (
        "llama-3.1-405b", 16, Plan(dp=4, tp=8, pp=8, zero=3, num_microbatches=8, recompute="full"),
        8192, 7, 11.472,
    ),
}  # fmt: skip


def _ranks(name: str, layers: int, plan: Plan, seq_len: int, stack: str = "torchtitan"):
    model = load_model(name).model_copy(update={"order": (0,) * layers})
    job = Job(
        model=model,
        recipe=Recipe(seq_len=seq_len, global_batch=plan.dp * plan.num_microbatches),
        cluster=load_cluster(f"h100-sxm:{plan.devices}"),
        stack=load_stack(stack),
    )
    counts = (layers // plan.pp,) * plan.pp
    return [found for _, found in rank_memories(job, plan, counts, lower(job))]


@pytest.mark.parametrize("case", TRACED)
def test_traced_peaks(case):
    name, layers, plan, seq_len, rank, traced = TRACED[case]
    found = _ranks(name, layers, plan, seq_len)[rank]
    assert found.allocated / GIB == pytest.approx(traced, rel=0.05)


def test_one_microbatch_has_no_gradients_at_its_loss():
    """A second microbatch finds the gradients of the first; Megatron's buffers always stand."""
    one, two = (
        _ranks("llama-3.1-8b", 8, Plan(dp=8, zero=3, num_microbatches=m), 4096)[0] for m in (1, 2)
    )
    assert (one.phase, one.grads) == (1.0, 0.0)
    shard = 4 * load_model("llama-3.1-8b").model_copy(update={"order": (0,) * 8}).params() / 8
    assert two.allocated - one.allocated == pytest.approx(shard, rel=1e-9)
    # The pool of the reduction keeps their place, so what is reserved is the same.
    assert one.reserved == pytest.approx(two.reserved)
    other = _ranks("llama-3.1-8b", 8, Plan(dp=8, zero=3), 4096, "megatron-core-te")[0]
    assert other.grads > 0


def test_the_embedding_gradient_is_whole_under_a_pipeline():
    """6 bytes a row and column of the whole vocabulary on the first rank, whatever TP is."""
    plan = Plan(dp=4, tp=8, pp=8, zero=3, num_microbatches=8, recompute="full")
    ranks = _ranks("llama-3.1-405b", 16, plan, 8192)
    assert ranks[0].phase == 4.0
    assert ranks[0].allocated - ranks[1].allocated > 5 * 128256 * 16384


def test_receive_buffers_grow_with_the_microbatches():
    def second(m):
        plan = Plan(dp=4, tp=8, pp=8, zero=3, num_microbatches=m, recompute="full")
        return _ranks("llama-3.1-405b", 16, plan, 8192)[1].allocated

    boundary = 2 * 8192 * 16384 / 8
    assert second(32) - second(16) == pytest.approx(2 * 16 * boundary)
