"""Checkpoints against published sizes and times, and by hand."""

import pytest

from gangsaw.cost.checkpoint import (
    CONTENT_BYTES,
    Monthly,
    Prices,
    checkpoint_of,
    monthly_cost,
    save_times,
    tier_bandwidth,
    trained_params,
)
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.reliability import load_reliability, parse_rate_per_s
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Job, Plan, Recipe


def job(model, cluster, **recipe):
    terms = {"seq_len": 2048, "global_batch": 2048, **recipe}
    return Job(
        model=load_model(model),
        recipe=Recipe.model_validate(terms),
        cluster=load_cluster(cluster),
        stack=load_stack("megatron-core-te"),
    )


TIERS = load_reliability().storage


@pytest.mark.parametrize(
    ("model", "content", "measured_tb", "within"),
    [
        ("bloom-176b", "full", 2.3, 0.08),  # 2.3 TB: ml-engineering, BLOOM notes
        ("turing-nlg-530b", "state", 6.3, 0.02),  # 42 min at 20 Gb/s: GEMINI, SOSP'23
    ],
)
def test_sizes_of_published_checkpoints(model, content, measured_tb, within):
    found = checkpoint_of(job(model, "a100-sxm-80g:512"), Plan(tp=8, pp=8, dp=8), content)
    assert found.written / 1e12 == pytest.approx(measured_tb, rel=within)


def test_times_of_published_saves():
    big = job("llama-3.1-405b", "h100-sxm:8960")
    ck = checkpoint_of(big, Plan(tp=8, pp=16, dp=70))
    # ByteCheckpoint: blocked 0.59 s, saved in 51.06 s, loaded in 129.49 s.
    times = save_times(ck, TIERS["parallel-fs"], big.cluster, 8960, True)
    assert times.save_s == pytest.approx(51.06, rel=0.02)
    assert times.block_s == pytest.approx(0.59, rel=0.15)
    assert times.load_s == pytest.approx(129.49, rel=0.02)
    assert 117.2 < times.load_s < 169.5  # Orbax and DCP, the same model, arXiv:2605.23066
    # MT-NLG 530B at 20 Gb/s: 42 minutes.
    mt = job("turing-nlg-530b", "a100-sxm-80g:512")
    slow = TIERS["object-store"].model_copy(update={"write_bytes_per_s": 2.5e9})
    ck = checkpoint_of(mt, Plan(tp=8, pp=8, dp=8), "state")
    assert save_times(ck, slow, mt.cluster, 512, False).save_s == pytest.approx(2520, rel=0.02)
    # PyTorch DCP, Llama 3 8B on 512 H100: 0.5 s of blocking.
    small = job("llama-3.1-8b", "h100-sxm:512")
    ck = checkpoint_of(small, Plan(dp=512, zero=3))
    assert save_times(ck, TIERS["parallel-fs"], small.cluster, 512, True).block_s == pytest.approx(
        0.5, rel=0.05
    )
    # BLOOM: 40 s at 57.5 GB/s.
    bloom = job("bloom-176b", "a100-sxm-80g:384")
    ck = checkpoint_of(bloom, Plan(tp=4, pp=12, dp=8))
    fast = TIERS["parallel-fs"].model_copy(update={"write_bytes_per_s": 57.5e9})
    assert save_times(ck, fast, bloom.cluster, 384, False).block_s == pytest.approx(40, rel=0.1)


def test_who_writes_what():
    j = job("llama-3.1-8b", "h100-sxm:64")
    plan = Plan(tp=2, pp=2, dp=16, zero=1)
    n = trained_params(j)[0]
    sharded, replica, one, copies = (
        checkpoint_of(j, plan, "full", layout)
        for layout in ("sharded", "replica", "consolidated", "copies")
    )
    assert sharded.written == replica.written == one.written == n * 14
    assert [c.writers for c in (sharded, replica, one)] == [64, 4, 1]
    assert copies.written == n * (2 * 16 + 12)  # weights sixteen times, optimizer once
    three = checkpoint_of(j, plan.model_copy(update={"zero": 3}), "full", "copies")
    assert three.written == n * 14
    none = checkpoint_of(j, plan.model_copy(update={"zero": 0}), "full", "copies")
    assert none.written == n * 14 * 16
    tier = TIERS["parallel-fs"]
    slow = save_times(one, tier, j.cluster, 64, True)
    quick = save_times(sharded, tier, j.cluster, 64, True)
    assert slow.block_s - 0.5 == pytest.approx(64 * (quick.block_s - 0.5))
    assert slow.save_s > quick.save_s


def test_increments_of_adapters():
    j = job("llama-3.1-8b", "h100-sxm:8", task="lora", global_batch=64)
    plan = Plan(dp=8)
    adapters, frozen = trained_params(j)
    assert 0 < adapters < 0.01 * frozen
    first, later = checkpoint_of(j, plan, first=True), checkpoint_of(j, plan)
    assert first.written - later.written == frozen * 2
    assert later.written == adapters * CONTENT_BYTES["full"]


def test_bandwidth_is_bounded_by_the_writers_links():
    cluster = load_cluster("h100-sxm:64")
    wide = TIERS["parallel-fs"].model_copy(update={"write_bytes_per_s": 1e15})
    outer = cluster.tiers[-1]
    one = outer.bytes_per_s / outer.oversubscription * outer.efficiency
    assert tier_bandwidth(wide, cluster, 64, True, 1.0) == pytest.approx(one)
    assert tier_bandwidth(wide, cluster, 64, True) == pytest.approx(64 * one)
    nvme = TIERS["nvme"]
    assert tier_bandwidth(nvme, cluster, 64, True) == pytest.approx(8 * 12.4e9 * 0.8)
    full = nvme.model_copy(update={"other_load_frac": 1.0})
    with pytest.raises(InputError, match="leaves no bandwidth"):
        tier_bandwidth(full, cluster, 64, True)


def test_requests_limit_and_cost_a_month_by_hand():
    j = job("llama-3.1-8b", "h100-sxm:64")
    ck = checkpoint_of(j, Plan(dp=64, zero=3))
    store = TIERS["object-store"].model_copy(
        update={"write_bytes_per_s": 1e15, "prefixes": 1, "put_per_s": 10.0}
    )
    puts = max(64, ck.written / 64e6)
    assert save_times(ck, store, j.cluster, 64, False).save_s == pytest.approx(puts / 10, rel=0.01)
    cost = monthly_cost(ck, store, Prices(0.023, 0.005, 0.0004, 0.01), Monthly(1000, 10, 3, 8))
    assert cost.kept_usd == pytest.approx(3 * ck.written / 1e9 * 0.023)
    assert cost.requests_usd == pytest.approx((1000 * puts * 0.005 + 10 * puts * 0.0004) / 1e3)
    assert cost.egress_usd == pytest.approx(10 * ck.read / 1e9 * 0.01)
    assert cost.wear_usd == 0.0
    nvme = TIERS["nvme"]
    worn = monthly_cost(ck, nvme, Prices(0, 0, 0, 0), Monthly(1000, 10, 3, 8))
    assert worn.wear_usd == pytest.approx(1000 * ck.written / nvme.endurance_bytes * nvme.drive_usd)
    assert worn.usd == worn.wear_usd


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("3.6/h", 1e-3),
        ("0.051%/month", 0.00051 / (365.25 * 86400 / 12)),
        ("6.5/1000day", 6.5 / 86.4e6),
        ("1/s", 1.0),
    ],
)
def test_rates(text, per_s):
    assert parse_rate_per_s(text, "x") == pytest.approx(per_s)


@pytest.mark.parametrize("text", ["0/h", "3", 3.0, "2/s", "-1/h", "1/fortnight", "1/0h", "", None])
def test_wrong_rates_are_one_line(text):
    with pytest.raises(InputError, match="Legal") as fault:
        parse_rate_per_s(text, "mine.toml: components.device.rate")
    assert "\n" not in str(fault.value)
    assert "components.device.rate" in str(fault.value)


def test_own_figures_stand_in_place_of_the_shipped(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "[recovery]\ndetect_s = 30\n[storage.nvme]\nother_load_frac = 0.5\n"
        '[components.feed]\nrate = "1/10y"\nunit = "feed"\ncure = "replace"\nhits = "feed"\n'
        'source = "ours"\nas_of = "2026"\n'
    )
    mine, shipped = load_reliability(path), load_reliability()
    assert mine.recovery.detect_s == 30 and mine.recovery.init_s == shipped.recovery.init_s
    assert mine.storage["nvme"].other_load_frac == 0.5
    assert set(mine.components) - set(shipped.components) == {"feed"}
    for text, said in (
        ("[component]\nx = 1\n", "unknown keys component"),
        ("[components.gpu]\nunit = 'device'\n", "rate is missing"),
        ("[noise]\nbackground_frac = 1.0\n", "nothing of the fabric"),
        ("[recovery]\ndetect = 3\n", "unknown keys detect"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            load_reliability(path)
