"""Doublings that cannot help are passed over, and the answer is that of trying them all."""

import pytest

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.nearest import fullness, with_more_devices
from gangsaw.search.space import Limits, narrower, search_all, stack_breadth
from gangsaw.spec import Job, Recipe


def searched(model, cluster, batch):
    job = Job(
        model=load_model(model),
        recipe=Recipe(seq_len=4096, global_batch=batch),
        cluster=load_cluster(cluster),
        stack=load_stack("megatron-core-te"),
    )
    return job, search_all(job, {}, narrower(stack_breadth(job.stack.rules)))


@pytest.mark.parametrize(
    ("model", "cluster"),
    [("llama-3.1-70b", "rtx-4090:8"), ("llama-3.1-8b", "rtx-4090:1"), ("llama-3.1-70b", "l40s:2")],
)
def test_the_smallest_doubling_is_found_without_trying_all(model, cluster):
    job, found = searched(model, cluster, 64)
    full = fullness(found, Limits())
    assert full > 1.0
    tried, skipped = with_more_devices(job, Limits()), with_more_devices(job, Limits(), full)
    assert tried == skipped and tried is not None
    # The devices named hold more than the fewer ones lack.
    assert tried["peak_bytes"] <= tried["capacity_bytes"]
