"""The site around a plan: each target is the edge at which the plan stops to hold."""

import json
import math

import pytest

from gangsaw.bill.goodput import daly_interval_s, expected_wall_s, job_mtbf_s
from gangsaw.cli.main import run
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.search.parameters import Case, Money, parameter
from gangsaw.search.site import Facility, batch_sweep, procurement, site_answer
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

BOOK = shipped_prices()
JOB = Job(
    model=load_model("llama-3.1-70b"),
    recipe=Recipe(seq_len=8192, global_batch=512),
    cluster=load_cluster("h100-sxm:256"),
    stack=load_stack("megatron-core-te"),
)
MONEY = Money(2.95, device_mtbf_h=50_000, restart_s=750, checkpoint_block_s=0.6)
CASE = Case("plan", JOB, Plan(tp=8, pp=4, dp=8, num_microbatches=64), MONEY)
TARGETS = {t.name: t for t in procurement(CASE, BOOK)}


def test_memory_target_is_the_edge_of_fitting():
    over, least = parameter("device-memory"), TARGETS["device memory"].least
    above, below = (
        estimate(c.job, c.plan).memory
        for c in (over.at(CASE, least * 1.001), over.at(CASE, least * 0.999))
    )
    assert above.peak_bytes <= above.capacity_bytes
    assert below.peak_bytes > below.capacity_bytes


def test_link_target_is_the_edge_of_a_tenth():
    over, least = parameter("inter-node-bandwidth"), TARGETS["link beyond the node"].least
    free = estimate(over.at(CASE, 50e12).job, CASE.plan).step_time_s
    at = estimate(over.at(CASE, least).job, CASE.plan).step_time_s
    assert at == pytest.approx(1.1 * free, rel=6e-3)


def test_radix_target_is_the_least_that_reaches():
    radix = TARGETS["switch radix, two tiers"].least
    assert radix**2 / 2 >= 256 > (radix - 2) ** 2 / 2


def test_storage_target_costs_a_hundredth_of_the_run():
    size = JOB.model.params() * 14
    block = size / TARGETS["storage bandwidth, blocking saves"].least
    mtbf = job_mtbf_s(50_000, 256)
    # Blocking saves at Young's interval take d / tau = sqrt(d / 2M) of the work.
    assert block / math.sqrt(2 * block * mtbf) == pytest.approx(0.01, rel=1e-6)
    tau = daly_interval_s(block, mtbf)
    assert expected_wall_s(1.0, block, tau, mtbf, 0.0) == pytest.approx(1.02, abs=0.002)


def test_asynchronous_saves_end_before_the_next_one():
    least = TARGETS["storage bandwidth, asynchronous"].least
    assert JOB.model.params() * 14 / least == pytest.approx(
        daly_interval_s(0.6, job_mtbf_s(50_000, 256))
    )


def test_site_from_the_book_and_what_has_no_figure():
    answer = site_answer(CASE, BOOK)
    assert answer.floor.nodes == 32 and answer.fabric.host_links == 256
    caps = answer.caps
    assert caps.cheapest.usd_per_million_tokens <= caps.uncapped.usd_per_million_tokens
    assert answer.own_or_rent is not None


def test_devices_without_figures_are_said_and_not_guessed():
    amd = JOB.model_copy(update={"cluster": load_cluster("mi355x:256")})
    answer = site_answer(Case("amd", amd, CASE.plan, MONEY), BOOK)
    assert answer.own_or_rent is None and "device_price.mi355x" in answer.own_note
    assert answer.caps.basis.startswith("the rent less its energy")


def test_a_rack_of_fast_links_is_one_domain():
    rack = JOB.model_copy(update={"cluster": load_cluster("gb200-nvl72:288")})
    plan = Plan(tp=8, pp=4, dp=9, mbs=1, num_microbatches=64)
    rack = rack.model_copy(update={"recipe": Recipe(seq_len=8192, global_batch=9 * 64)})
    case = Case("rack", rack, plan, MONEY)
    assert parameter("inter-node-bandwidth").get(case) == 50e9
    assert parameter("intra-node-bandwidth").get(case) == 900e9
    answer = site_answer(case, BOOK)
    assert answer.fabric.host_links == 288 and answer.fabric_note == ""
    assert "link beyond the nvl72" in {t.name for t in answer.targets}
    alone = rack.model_copy(
        update={
            "cluster": load_cluster("gb200-nvl72:72"),
            "recipe": Recipe(seq_len=8192, global_batch=18 * 64),
        }
    )
    one = Case("one", alone, Plan(tp=4, dp=18, num_microbatches=64), MONEY)
    assert site_answer(one, BOOK).fabric_note == "one nvl72: nothing to connect"
    with pytest.raises(InputError, match="no link beyond its nvl72"):
        parameter("inter-node-bandwidth").get(one)


def test_wanted_switch_is_taken_or_refused_with_a_reason():
    assert site_answer(CASE, BOOK, Facility(switch="sn5600")).switch == "sn5600"
    slow = site_answer(CASE, BOOK, Facility(switch="qm8700"))
    assert slow.fabric is None and "at least as fast" in slow.fabric_note


def test_batch_sweep_steps_are_those_of_the_estimate():
    sweep = batch_sweep(CASE, BOOK, 1e12, (32, 64, 128))
    for count, point in zip((32, 64, 128), sweep.points, strict=True):
        recipe = JOB.recipe.model_copy(update={"global_batch": count * 8})
        plan = CASE.plan.model_copy(update={"num_microbatches": count})
        result = estimate(JOB.model_copy(update={"recipe": recipe}), plan)
        assert point.step_time_s == pytest.approx(result.step_time_s)
        assert point.batch_tokens == count * 8 * 8192
    assert sweep.points[1].tokens == pytest.approx((1e12,) * 3)
    with pytest.raises(InputError):
        batch_sweep(CASE, BOOK, 1e12, (0,))


def test_bill_prints_site_and_batches():
    words = ["bill", "llama-3.1-8b", "h100-sxm:64", "--tp", "2", "--seq-len", "4096",
             "--global-batch", "256", "--facility"]  # fmt: skip
    code, out, err = run([*words, "--batches", "--tokens", "1T"])
    assert code == 0, err
    assert out.isascii() and max(len(x) for x in out.splitlines()) <= 100
    for word in ("request for proposal", "floor:", "fabric:", "power cap", "own or rent", "best"):
        assert word in out
    code, out, _ = run([*words, "--json"])
    assert code == 0
    answer = json.loads(out)
    assert len(answer["site"]["targets"]) == 6 and answer["batches"] is None
    code, out, err = run([*words, "--batches"])
    assert (code, out) == (2, "") and "--tokens" in err


def test_stated_site_binds_and_is_said(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(
        "lanes = 64\nhorizon_months = 12\n[rack]\ncooling_w = 45000.0\n[site]\nracks = 2\n"
    )
    words = ["bill", "llama-3.1-8b", "h100-sxm:64", "--tp", "2", "--seq-len", "4096",
             "--global-batch", "256", "--facility-file", str(path)]  # fmt: skip
    code, out, err = run([*words, "--json"])
    assert code == 0, err
    site = json.loads(out)["site"]
    # 45 kW of cooling would take four nodes of 10.2 kW, the feeds of 34.5 kW carry three.
    assert (site["floor"]["nodes_per_rack"], site["floor"]["rack_limit"]) == (3, "power")
    assert site["floor"]["nodes_possible"] == 6 and not site["floor"]["fits"]
    assert not site["host"]["lanes_ok"] and len(site["own_or_rent"]["curve"]) == 13
    code, out, _ = run(words)
    assert code == 0 and "does NOT fit: floor binds" in out and "TOO FEW" in out
    path.write_text("racks = 2\n")
    code, _, err = run(words)
    assert code == 2 and "unknown keys racks" in err


def test_page_shows_own_or_rent_and_the_batches(tmp_path):
    page = tmp_path / "bill.html"
    words = ["bill", "llama-3.1-8b", "h100-sxm:64", "--tp", "2", "--seq-len", "4096",
             "--global-batch", "256", "--facility", "--batches", "--tokens", "1T",
             "--html", str(page)]  # fmt: skip
    code, _, err = run(words)
    assert code == 0, err
    html = page.read_text()
    # Memory, the curve of owning against renting, and the sweep.
    assert html.count("<svg") == 3 and html.count("</svg>") == 3
    assert "own or rent" in html and "tokens to the same loss" in html
    assert "src=" not in html and "href=" not in html


def test_one_node_has_targets_and_no_fabric():
    job = CASE.job.model_copy(
        update={"cluster": load_cluster("h100-sxm:8"), "model": load_model("llama-3.1-8b")}
    )
    batch = job.recipe.global_batch
    one = Case("one", job, Plan(tp=2, dp=4, num_microbatches=batch // 4), CASE.money)
    answer = site_answer(one, BOOK)
    names = {t.name for t in answer.targets}
    assert "link in the node" in names and "switch radix, two tiers" not in names
    target = next(t for t in answer.targets if t.name == "link in the node")
    over = parameter("intra-node-bandwidth")
    at, free = (over.at(one, v).step().step for v in (target.least, 450e12))
    assert at == pytest.approx(1.1 * free, rel=6e-3)
    assert answer.fabric is None and answer.fabric_note == "one node: nothing to connect"
    assert answer.floor.racks == 1


def test_a_node_without_published_power_says_so():
    job = CASE.job.model_copy(update={"cluster": load_cluster("tpu-v5p:32")})
    batch = job.recipe.global_batch
    one = Case("tpu", job, Plan(tp=4, dp=8, num_microbatches=batch // 8), CASE.money)
    answer = site_answer(one, BOOK)
    assert answer.caps is None and answer.floor is None
    assert "power.node.tpu-v5p" in answer.floor_note
    assert "rack power for two nodes" not in {t.name for t in answer.targets}


def test_power_that_the_cluster_states_stands_in_for_the_book():
    job = CASE.job.model_copy(update={"cluster": load_cluster("mi300x:64")})
    batch = job.recipe.global_batch
    one = Case("mi", job, Plan(tp=8, dp=8, num_microbatches=batch // 8), CASE.money)
    answer = site_answer(one, BOOK)
    targets = {t.name: t.least for t in answer.targets}
    assert targets["rack power for two nodes"] == 2 * job.cluster.host.node_power_w
    assert answer.floor.feed_w == pytest.approx(8 * job.cluster.host.node_power_w * 1.1 * 1.3)
    mine = BOOK.figures["power.node.b200"].model_copy(update={"value": 9_000.0})
    stated = BOOK.override({"power.node.mi300x": mine})
    assert site_answer(one, stated).floor.feed_w == pytest.approx(8 * 9_000 * 1.1 * 1.3)
