"""What DTensor moves beside the collective when a sequence is gathered: counted in torch itself."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from gangsaw.read.stacks import load_stack

RANKS = 8


class Copied(TorchDispatchMode):
    """Elements written by copying operators, which read as many."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.cat.default, torch.ops.aten.clone.default):
            self.elements += out.numel()
        return out


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


@pytest.mark.parametrize(("dim", "copies"), [(0, 0), (1, 1)])
def test_a_gather_along_the_sequence_is_concatenated_anew(mesh, dim, copies):
    batch, sequence, hidden = 16, 64, 32
    shape = [batch, sequence, hidden]
    shape[dim] //= RANKS
    part = DTensor.from_local(torch.zeros(shape, dtype=torch.bfloat16), mesh, [Shard(dim)])
    with Copied() as seen:
        part.redistribute(mesh, [Replicate()]).to_local()
    assert seen.elements == copies * batch * sequence * hidden
    stack = load_stack("torchtitan")
    # Sequence parallelism splits dimension 1 there: each element is read and written in 2 bytes.
    if dim == 1:
        assert stack.time.tp_copy_bytes == 2 * torch.bfloat16.itemsize
