"""DualPipe's program on torch's pipeline runtime, both directions at once, on four processes."""

import torch
import two_way_torch
from torch import multiprocessing

RANKS, MICROBATCHES = 4, 8


def test_gradients_of_both_copies_are_those_of_the_whole_model(tmp_path):
    multiprocessing.spawn(
        two_way_torch.work, (RANKS, MICROBATCHES, str(tmp_path)), nprocs=RANKS, join=True
    )
    stages = two_way_torch.model(RANKS)
    x, y = two_way_torch.batch(MICROBATCHES // 2)
    two_way_torch.squares(torch.nn.Sequential(*stages)(x), y).backward()
    seen = set()
    for rank in range(RANKS):
        for stage, grads in torch.load(tmp_path / f"grads-{rank}").items():
            seen.add(stage)
            for found, of in zip(grads, stages[stage % RANKS].parameters(), strict=True):
                assert torch.allclose(found, of.grad, atol=1e-5)
    assert seen == set(range(2 * RANKS))
