"""Measuring: known curves are found again, noise is told, an interrupted run goes on."""

from __future__ import annotations

import json
import math
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import tiny

from gangsaw.cost.gemm import gemm_s
from gangsaw.errors import RunFailedError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.stacks import load_stack
from gangsaw.run.assemble import _layer_s, cluster_from, settle_on_layer, settle_on_split_layer
from gangsaw.run.fitting import (
    collective_s,
    fit_attention,
    fit_gemm,
    fit_memory,
    fit_network,
    fit_operations,
    one_tier,
    spread,
)
from gangsaw.run.measure import (
    CONFIG,
    RESULTS,
    MeasureConfig,
    key_of,
    measured_cluster,
    noise,
    probes_of,
    read_results,
    run_probes,
)
from gangsaw.run.results import joined
from gangsaw.search.estimate import estimate
from gangsaw.spec import AttentionSpec, Job, MlpSpec, Plan, Recipe
from gangsaw.spec.cluster import ClusterSpec, TierSpec
from gangsaw.trace.cluster_toml import cluster_toml

SHAPES = [(m, n, k) for m in (256, 512, 2048) for n in (512, 1408, 4096) for k in (64, 512, 2048)]


def _device(peak, frac, k0, launch, hbm):
    from gangsaw.cost.lower_cluster import device_of

    base = device_of(load_cluster("h100-sxm:8"), "bf16")
    return base._replace(
        peak=peak,
        gemm_frac=frac,
        gemm_k0=k0,
        gemm_launch_s=launch,
        hbm=hbm,
        hbm_frac=1.0,
        sustained=1.0,
        sm=1.0,
    )


@settings(max_examples=15, deadline=None)
@given(rate=st.floats(1e10, 1e14), k0=st.floats(20, 400), seed=st.integers(0, 99))
def test_gemm_curve_is_found_again(rate, k0, seed):
    """Rows made by the prediction's own formula, with 3 % of noise, give its parameters back."""
    device = _device(rate, 1.0, k0, 5e-6, rate / 20)
    rng = np.random.default_rng(seed)
    rows = [
        {"m": m, "n": n, "k": k, "low_s": gemm_s(m, n, k, False, device) * rng.lognormal(0, 0.03)}
        for m, n, k in SHAPES
    ]
    fit = fit_gemm(rows, rate / 20)
    assert fit.values["asymptote_flops_per_s"] == pytest.approx(rate, rel=0.2)
    assert fit.residual < 0.06
    again = _device(
        fit.values["asymptote_flops_per_s"],
        1.0,
        fit.values["k0"],
        fit.values["launch_s"],
        rate / 20,
    )
    for m, n, k in ((1024, 1408, 512), (256, 4096, 1024)):
        assert gemm_s(m, n, k, False, again) == pytest.approx(
            gemm_s(m, n, k, False, device), rel=0.08
        )


def _talk(net, ranks, seed=0):
    rng = np.random.default_rng(seed)
    rows = [
        {"kind": "collective", "operation": o, "ranks": ranks, "bytes": 4**i}
        for o in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for i in range(5, 14)
    ]
    rows += [{"kind": "p2p", "bytes": 4**i} for i in range(5, 14)]
    for row in rows:
        row["low_s"] = collective_s(row, net) * rng.lognormal(0, 0.05)
    return rows


@pytest.mark.parametrize(("rate", "latency"), [(2e9, 40e-6), (4.5e11, 4e-6), (12.5e6, 1e-3)])
def test_network_curve_is_found_again(rate, latency):
    fit = fit_network(_talk(one_tier(8, rate, latency, 5e-5), 8), 8)
    assert fit.values["bytes_per_s"] == pytest.approx(rate, rel=0.1)
    assert fit.values["latency_s"] == pytest.approx(latency, rel=0.2)
    assert fit.residual < 0.08


def test_a_wrong_curve_shows_in_the_residual():
    rows = _talk(one_tier(8, 1e10, 1e-5, 5e-5), 8)
    for row in rows[::2]:
        row["low_s"] *= 3
    assert fit_network(rows, 8).residual > 0.3


def test_attention_and_memory():
    rows = [
        {
            "seq": s,
            "heads": 8,
            "head_dim": 64,
            "backward": b,
            "low_s": 2 * s**2 * 8 * 64 / 1e12 * (1 + 300 / s) * (1 / 0.4 + b * 2.5 / 0.3),
        }
        for s in (256, 512, 1024, 4096)
        for b in (False, True)
    ]
    fit = fit_attention(rows, 1e12)
    assert fit.values["a_fwd"] == pytest.approx(0.4, rel=0.02)
    assert fit.values["a_bwd"] == pytest.approx(0.3, rel=0.02)
    assert fit.values["c0"] == pytest.approx(300, rel=0.05)
    memory = fit_memory(
        [
            {"bytes": 2**27, "low_s": 0.01},
            {"bytes": 2**28, "low_s": 0.025},
            {"bytes": 2**28, "low_s": 0.03},
        ]
    )
    assert memory.values["bytes_per_s"] == 2**27 / 0.01
    assert 0 < memory.values["frac"] <= 1


def test_rounds_of_a_probe_are_joined():
    rows = [
        {"key": "a", "round": r, "low_s": low, "median_s": 2 * low, "repetitions": 5}
        for r, low in enumerate((1.2, 1.0, 1.1))
    ]
    found = joined(rows)
    assert (found["low_s"], found["median_s"], found["repetitions"]) == (1.0, 2.0, 15)
    assert found["scatter_frac"] == pytest.approx(0.2 / 1.1)
    assert joined(rows[:1])["scatter_frac"] == 0.0
    assert joined([{"key": "machine", "host": "x"}]) == {"key": "machine", "host": "x"}


def test_noise_is_what_rounds_differ_by_and_what_else_ran():
    assert spread([1.0] * 9)[2] == 0.0
    rows = [
        {"key": str(i), "kind": "gemm", "scatter_frac": 0.3 + i / 10 if i < 4 else 0.01}
        for i in range(9)
    ]
    found = noise(rows)
    assert found["too_noisy"] and found["noisiest"][0] == "3"
    assert found["noisy_frac"] == pytest.approx(4 / 9) and found["scatter_frac"] == 0.01
    quiet = [{**r, "scatter_frac": 0.01} for r in rows]
    assert not noise(quiet)["too_noisy"]
    spin = {"key": "s", "kind": "spin", "core_share": 0.97, "scatter_frac": 0.0}
    assert not noise([*quiet, spin])["too_noisy"]
    busy = noise([*quiet, {**spin, "core_share": 0.6}])
    assert busy["too_noisy"] and busy["busy_frac"] == pytest.approx(0.4)


def test_operations_have_curves_of_their_own():
    """Gathers at half the rate of reductions: one curve for both is off, each one's own is not."""
    fast = _talk(one_tier(2, 2e9, 4e-5, 5e-5), 2)
    slow = _talk(one_tier(2, 1e9, 4e-5, 5e-5), 2)
    rows = [r for r in fast if r.get("operation") == "all_reduce"]
    rows += [r for r in slow if r.get("operation") == "all_gather"]
    own = fit_operations(rows, 2)
    assert set(own) == {"all_reduce", "all_gather"}
    assert own["all_reduce"].values["bytes_per_s"] == pytest.approx(2e9, rel=0.1)
    assert own["all_gather"].values["bytes_per_s"] == pytest.approx(1e9, rel=0.1)
    together = fit_network(rows, 2).residual
    assert max(f.residual for f in own.values()) < 0.08 < together
    assert fit_operations(rows[:2], 2) == {}


def _config(out, **more):
    return MeasureConfig(
        out=str(out),
        ranks=2,
        model=tiny(),
        seq_len=64,
        budget_s=0.002,
        sustained_s=0.2,
        largest_bytes=2**16,
        checkpoint_bytes=2**20,
        memory_bytes=(2**20, 2**21),
        **more,
    )


def _probe(cfg, stop_after=None):
    said = []

    def say(text):
        said.append(text)
        if stop_after is not None and len(said) == stop_after:
            raise KeyboardInterrupt("the user stops it")

    try:
        run_probes(cfg, say)
    except KeyboardInterrupt:
        raise RuntimeError("stopped") from None
    return said


@pytest.fixture(scope="module")
def measured(pool, tmp_path_factory):
    """Interrupted after ten probes, its last line torn, then run to the end."""
    out = tmp_path_factory.mktemp("measure")
    cfg = _config(out)
    with pytest.raises(RunFailedError):
        pool.run(2, _probe, cfg, 10)
    lines = (out / RESULTS).read_text()
    assert lines.count("\n") == 10
    (out / RESULTS).write_text(lines[:-30])
    said = pool.run(2, _probe, cfg)[0]
    (out / CONFIG).write_text(cfg.model_dump_json())
    return out, cfg, said


def test_an_interrupted_measurement_goes_on(measured):
    out, cfg, said = measured
    assert len(said) == cfg.rounds * len(probes_of(cfg)) - 9
    assert set(read_results(out)) == {key_of(p) for p in probes_of(cfg)} | {"machine"}
    assert not list(out.glob("probe-*.bin"))


def test_a_layer_keeps_what_a_hand_count_says_at_each_tp(measured):
    """fp32 tensors that autograd needs, tensor by tensor; norms and inputs cut along the sequence."""
    out, cfg, _ = measured
    kind, s = cfg.model.kinds[0], cfg.seq_len
    a, hidden = kind.attention, kind.hidden
    rows = [r for r in read_results(out).values() if r["kind"] == "layer" and r["backward"]]
    assert {r["tp"] for r in rows} == {1, 2}
    for row in rows:
        tp = row["tp"]
        norms = 2 * (2 * s * hidden + s) // tp
        gathered = 2 * s * hidden
        heads = s * (2 * a.heads + 2 * a.kv_heads) * a.head_dim // tp + s * a.heads // tp
        mlp = 4 * s * kind.mlp.ffn // tp
        assert row["kept_bytes"] == 4 * (norms + gathered + heads + mlp)


def test_an_unfinished_measurement_gives_no_cluster(tmp_path):
    (tmp_path / RESULTS).write_text(json.dumps({"key": "x", "kind": "gemm"}) + "\n")
    with pytest.raises(RunFailedError, match="not finished"):
        measured_cluster(tmp_path)


def test_the_cluster_is_a_cluster(measured):
    out, cfg, _ = measured
    cluster, facts = measured_cluster(out)
    assert cluster.devices == 2
    tier = cluster.tiers[0]
    for rate in (
        cluster.device.peak_flops_per_s["fp32"],
        cluster.device.memory_bytes_per_s,
        tier.bytes_per_s,
    ):
        assert 0 < rate < math.inf
    assert 0 < cluster.device.sustained_frac <= 1
    assert ClusterSpec.model_validate(tomllib.loads(cluster_toml(cluster, ["x"]))) == cluster
    assert {r["tp"] for r in facts["layers"]} == {1, 2}
    assert {r["backward"] for r in facts["layers"]} == {False, True}
    assert all(r["kept_bytes"] > 0 for r in facts["layers"] if r["backward"] and r["tp"] == 1)
    for fit in facts["fits"].values():
        assert np.isfinite(fit["residual"])
    job = Job(
        model=cfg.model,
        recipe=Recipe(seq_len=64, global_batch=2, precision="fp32"),
        cluster=cluster,
        stack=load_stack("unknown"),
    )
    assert estimate(job, Plan(dp=2)).step_time_s > 0


MACHINE = {
    "host": "made", "name": "made", "torch": "2", "python": "3", "cores": 2, "backend": "gloo",
    "ranks": 2, "local": 2, "memory_bytes": 2**34, "sm_count": 1, "date": "2026-01-01",
    "burst_flops_per_s": 1e12, "sustained_flops_per_s": 9e11,
}  # fmt: skip
WIDE = tiny().model_copy(
    update={
        "hidden": 1024,
        "kinds": (
            tiny()
            .kinds[0]
            .model_copy(
                update={
                    "hidden": 1024,
                    "attention": AttentionSpec(heads=16, kv_heads=8, head_dim=64, v_head_dim=64),
                    "mlp": MlpSpec(ffn=4096),
                }
            ),
        ),
        "final_norm_params": 1024,
    }
)


def _made():
    """Rows of kernels alone, made from known curves: nothing is timed."""
    device = _device(1e12, 1.0, 60, 2e-6, 2e10)
    rows = [
        {"kind": "gemm", "dtype": "fp32", "m": m, "n": n, "k": k}
        | {"low_s": gemm_s(m, n, k, False, device)}
        for m, n, k in SHAPES
    ]
    rows += [{"kind": "memory", "bytes": 2.0**i, "low_s": 2.0**i / 2e10} for i in (26, 27, 28)]
    for seq in (512, 1024, 2048):
        for backward in (False, True):
            flops = 2 * seq**2 * 16 * 64 * (1 + 2.5 * backward)
            rows.append(
                {"kind": "attention", "dtype": "fp32", "seq": seq, "heads": 16, "head_dim": 64}
                | {"backward": backward, "low_s": flops / 3e11 * (1 + 200 / seq)}
            )
    rows += [{**r, "stride": 1} for r in _talk(one_tier(2, 2e9, 4e-5, 5e-5), 2)]
    return rows


def _layer_row(low_s):
    row = {"kind": "layer", "layer": 0, "tp": 1, "backward": True, "seq": 512, "mbs": 1}
    return {**row, "dtype": "fp32", "low_s": low_s, "median_s": low_s, "spread_frac": 0.0}


def _settled(seconds_factor):
    """A cluster from made rows, settled on a layer that takes `seconds_factor` times its kernels."""
    cluster, _ = cluster_from(_made(), MACHINE)
    stack = load_stack("unknown")
    alone_s = settle_on_layer(cluster, WIDE, stack, [_layer_row(1.0)]).factor
    rows = [_layer_row(alone_s * seconds_factor)]
    return settle_on_layer(cluster, WIDE, stack, rows), cluster, rows


@settings(max_examples=10, deadline=None)
@given(slower=st.floats(1.0, 20.0))
def test_a_whole_layer_is_predicted_as_it_was_seen(slower):
    """A layer slower than its kernels alone: scaled until it takes what it took, in one go."""
    found, _, rows = _settled(slower)
    assert found.factor == pytest.approx(1 / slower)
    assert found.left == pytest.approx(1.0, rel=1e-6)
    again = settle_on_layer(found.cluster, WIDE, load_stack("unknown"), rows)
    assert again.factor == pytest.approx(1.0, rel=1e-6)
    assert again.cluster.device.gemm_frac == pytest.approx(found.cluster.device.gemm_frac, rel=1e-5)


def test_shares_stop_at_the_whole_and_what_is_left_is_told():
    """A layer faster than its kernels alone: no share passes 1, the gap that stays is reported."""
    found, cluster, _ = _settled(0.25)
    assert found.factor == pytest.approx(4.0)
    assert 1.0 < found.left < found.factor
    device = found.cluster.device
    assert max(device.gemm_frac, device.memory_frac, *device.attention[0].a_fwd.values()) == 1.0
    assert device.attention[0].a_fwd[64] > cluster.device.attention[0].a_fwd[64]
    assert settle_on_layer(cluster, WIDE, load_stack("unknown"), []).left is None


def test_settling_on_a_real_measurement_comes_nearer(measured):
    """Whatever this machine did: the gap to the layer does not grow, every share stays a share."""
    out, cfg, _ = measured
    rows = list(read_results(out).values())
    raw, _ = cluster_from(rows, read_results(out)["machine"])
    found = settle_on_layer(raw, cfg.model, load_stack("unknown"), rows)
    assert abs(math.log(found.left)) <= abs(math.log(found.factor)) + 1e-9
    assert 0 < found.cluster.device.gemm_frac <= 1
    assert 0 < found.cluster.device.memory_frac <= 1


def test_across_nodes_there_are_two_tiers(measured):
    """Eight ranks on two hosts, made from known curves: both tiers come back."""
    out, _, _ = measured
    rows = [r for r in read_results(out).values() if r["kind"] not in ("collective", "p2p")]
    machine = {**read_results(out)["machine"], "ranks": 8, "local": 4}
    fast, slow = one_tier(4, 1e11, 5e-6, 5e-5), one_tier(8, 1e9, 5e-5, 5e-5)
    rows += [{**r, "stride": 1} for r in _talk(fast, 4)]
    rows += [{**r, "stride": 4, "ranks": 2} for r in _talk(slow, 2)]
    cluster, _ = cluster_from(rows, machine)
    assert [t.name for t in cluster.tiers] == ["node", "network"]
    assert cluster.tiers[0].bytes_per_s == pytest.approx(1e11, rel=0.15)
    assert cluster.tiers[1].bytes_per_s == pytest.approx(1e9, rel=0.15)
    assert [t.devices for t in cluster.tiers] == [4, 8]


@pytest.mark.parametrize("late", [2e-5, 4e-3])
def test_collectives_inside_a_layer_carry_what_they_cost_there(late):
    """A layer under TP that takes longer than its parts: each of its calls carries a share.

    There are eight, all-gather and reduce-scatter of attention and MLP, forward and backward;
    stacks of the mixture that gather again in the backward make it up to ten. Latency is a floor
    under a collective's time, so a small excess needs more of it than its share.
    """
    found, _, rows = _settled(1.5)
    stack = load_stack("unknown")
    whole = {**_layer_row(1.0), "tp": 2}
    alone_s = _layer_s(found.cluster, WIDE, stack, whole)
    split = {**whole, "low_s": alone_s + 8 * late}
    called = settle_on_split_layer(found.cluster, WIDE, stack, [*rows, split])
    assert called.call_s >= 0.8 * late
    if late > found.cluster.tiers[0].latency_s * 10:
        # A tier's curve is the middle of its operations: a call may carry its misfit.
        assert called.call_s <= 1.05 * late
    assert _layer_s(called.cluster, WIDE, stack, split) == pytest.approx(split["low_s"], rel=1e-6)
    assert called.cluster.tiers[0].latency_s == pytest.approx(
        found.cluster.tiers[0].latency_s + called.call_s
    )


def test_a_split_layer_faster_than_its_parts_changes_nothing():
    found, _, rows = _settled(1.0)
    split = {**_layer_row(1e-9), "tp": 2}
    called = settle_on_split_layer(found.cluster, WIDE, load_stack("unknown"), [*rows, split])
    assert (called.call_s, called.cluster) == (0.0, found.cluster)


def test_a_network_measured_in_noise_still_gives_a_cluster():
    """Messages whose time does not grow with their size: no rate beyond what a tier may have."""
    rows = [
        {"kind": "collective", "operation": o, "ranks": 2, "stride": 1, "bytes": b, "low_s": s}
        for o in ("all_reduce", "all_gather")
        for b, s in ((4096, 3e-3), (2**20, 1e-3), (2**25, 2e-4))
    ]
    fit = fit_network(rows, 2)
    assert 1e5 <= fit.values["bytes_per_s"] <= 1e16
    TierSpec(name="node", devices=2, bytes_per_s=fit.values["bytes_per_s"], latency_s=0.0)
