"""The fake-tensor oracle itself: exact where exact numbers are known."""

from __future__ import annotations

import pytest

from gangsaw.read.models import load_model
from gangsaw.run.oracle import trace_rank
from gangsaw.spec import Plan


def _small(layers: int, vocab: int = 128256):
    """Layers of an 8B model; with a small vocabulary they alone set the peak."""
    return load_model("llama-3.1-8b").model_copy(update={"order": (0,) * layers, "vocab": vocab})


def _trace(pool, *args):
    # In a process of its own: the fake group must not meet another one.
    return pool.run(1, traced, *args)[0]


def traced(model, plan, seq_len, rank):
    import torch.distributed as dist

    dist.destroy_process_group()
    try:
        return trace_rank(model, plan, seq_len, rank)
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_state_is_exact(pool):
    """AdamW's two fp32 moments of the shard of every parameter, to the byte."""
    model = _small(2)
    found = _trace(pool, model, Plan(dp=8, zero=3, num_microbatches=2), 512, 0)
    assert found.parts_bytes["Optstate"] == pytest.approx(8 * model.params() / 8, rel=1e-4)
    assert found.parts_bytes["Gradient"] >= 4 * model.params() / 8
    assert found.peak_bytes == pytest.approx(sum(found.parts_bytes.values()))


def test_recompute_and_tensor_parallel_save_activations(pool):
    model = _small(4, vocab=1024)
    plain = _trace(pool, model, Plan(dp=8, zero=3, num_microbatches=2), 2048, 0)
    full = _trace(pool, model, Plan(dp=8, zero=3, num_microbatches=2, recompute="full"), 2048, 0)
    cut = _trace(pool, model, Plan(dp=4, tp=2, zero=3, num_microbatches=2), 2048, 0)
    assert full.peak_bytes < plain.peak_bytes - 3 * 2048 * 14336 * 8
    assert cut.peak_bytes < 0.8 * plain.peak_bytes


def test_first_pipeline_rank_holds_more_microbatches(pool):
    """1F1B: rank 0 of 4 keeps four microbatches, each kept layer input and output adding up."""
    model = _small(4, vocab=1024)
    peaks = [
        _trace(pool, model, Plan(dp=1, pp=4, num_microbatches=m, zero=3), 1024, 0).peak_bytes
        for m in (1, 5, 8)
    ]
    one = peaks[1] - peaks[0]
    assert one > 2 * 1024 * 14336 * 6
    # More microbatches than stages add receive buffers only: 2 bytes x tokens x hidden each.
    assert peaks[2] - peaks[1] == pytest.approx(3 * 2 * 1024 * 4096, rel=0.5)
