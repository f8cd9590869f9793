"""A site file that was measured on another machine or software says so where it is used."""

import pytest

from gangsaw.cli.site_file import foreign
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Job, Recipe
from gangsaw.spec.site import SiteDoc


def a_job(cluster, stack):
    return Job(
        model=load_model("llama-3.1-8b"),
        recipe=Recipe(seq_len=4096, global_batch=8),
        cluster=load_cluster(cluster),
        stack=load_stack(stack),
    )


SITE = SiteDoc(device="H100 SXM", stack="torchtitan")


@pytest.mark.parametrize("site", [SITE, SiteDoc(), SiteDoc(device="NVIDIA H100 80GB HBM3")])
def test_its_own_set_up_says_nothing(site):
    assert foreign(a_job("h100-sxm:8", "torchtitan"), site) == ()


def test_another_machine_and_software_are_named():
    device, stack = foreign(a_job("b200:8", "fsdp1"), SITE)
    assert "H100 SXM5 80GB" in device and "B200" in device
    assert "torchtitan" in stack and "fsdp1" in stack


def test_a_device_that_the_catalog_lacks_is_another_one():
    found = foreign(a_job("h100-sxm:8", "torchtitan"), SiteDoc(device="Prototype 7"))
    assert len(found) == 1 and "Prototype 7" in found[0]
