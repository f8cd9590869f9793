"""Power, floor, caps, fabric parts, tokens to target, and the worth of idle share."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.bill.fabric import FabricPlan, fabric_parts, host_check, ports_down_up, reach
from gangsaw.bill.power import (
    CapTerms,
    RackLimits,
    SiteLimits,
    SitePower,
    cap_point,
    cheapest_cap,
    floor_plan,
    site_power,
    three_phase_w,
)
from gangsaw.bill.tokens import critical_batch, sweep_to_target, tokens_to_target
from gangsaw.bill.value import (
    devices_for_equal_work,
    idle_devices,
    recovered,
    worth_of,
    yearly_value_usd,
)
from gangsaw.errors import InputError
from gangsaw.read.parts import optic_part, parts, switch_part
from gangsaw.read.prices import shipped_prices

BOOK = shipped_prices()


@pytest.mark.parametrize(
    ("volts", "amperes", "kw"),
    [(415, 60, 34.5), (415, 32, 18.4), (208, 60, 17.3), (480, 100, 66.5)],
)
def test_breakers(volts, amperes, kw):
    assert three_phase_w(volts, amperes, 0.8) / 1e3 == pytest.approx(kw, abs=0.05)


def test_pue_costs_what_the_arithmetic_says():
    # 1,024 H100 at 1.08 MW IT: 1.3 against 1.1 is 162 thousand dollars a year at 8.62 cents.
    year_s = 8766 * 3600
    power = SitePower(node_rated_w=1.08e6 / 128, pue=1.3, usd_per_kwh=0.0862)
    lean = power.model_copy(update={"pue": 1.1})
    more = power.energy_usd(power.energy_j(128, year_s)) - lean.energy_usd(
        lean.energy_j(128, year_s)
    )
    assert more == pytest.approx(162e3, rel=0.01)


def test_site_power_of_the_book():
    power = site_power(BOOK, "h100-sxm")
    assert power.it_w(1) == pytest.approx(10_200 * 0.82 * 1.1)
    assert power.feed_w(128) == pytest.approx(128 * 10_200 * 1.1 * 1.3)
    assert power.carbon_kg(3.6e6) == pytest.approx(0.39)
    # 100,000 H100 were put at more than 150 MW and 1.59 TWh a year.
    assert 100 < power.feed_w(12_500) / 1e6 < 190


def test_bloom_energy_from_rated_device_power():
    # 1,082,990 device-hours at 400 W are the 433,196 kWh of the report, with its 24.7 t of CO2.
    power = SitePower(node_rated_w=400.0, kg_co2_per_kwh=BOOK.value("carbon.fr.mean", "kg/kWh"))
    energy = power.energy_j(1, 1_082_990 * 3600)
    assert energy / 3.6e6 == pytest.approx(433_196, rel=1e-4)
    assert power.carbon_kg(energy) / 1e3 == pytest.approx(24.7, abs=0.05)


def test_floor_and_what_binds():
    power = site_power(BOOK, "h100-sxm")
    air = RackLimits(cooling_w=21_000, volts=415, amperes=60, feeds=2)
    plan = floor_plan(128, power, air, SiteLimits(racks=60))
    assert (plan.nodes_per_rack, plan.rack_limit, plan.racks) == (2, "cooling", 64)
    assert plan.site_limit == "floor" and plan.nodes_possible == 120 and not plan.fits
    liquid = RackLimits(cooling_w=140_000, volts=415, amperes=60, feeds=4, nodes_that_fit=8)
    plan = floor_plan(128, power, liquid, SiteLimits(feed_w=2e6, cooling_w=1.6e6))
    # Two of four 34.5 kW feeds carry the rack: six nodes of 10.2 kW.
    assert (plan.nodes_per_rack, plan.rack_limit) == (6, "power")
    assert plan.by_limit == {
        "feed": math.floor(2e6 / (10_200 * 1.1 * 1.3)),
        "cooling": math.floor(1.6e6 / (10_200 * 1.1)),
    }
    assert plan.fits and plan.site_limit == "feed"
    ports = floor_plan(128, power, liquid, SiteLimits(switch_ports=512))
    assert ports.site_limit == "ports" and ports.nodes_possible == 64
    with pytest.raises(InputError, match=r"10\.2 kW does not fit.*8\.0 kW of cooling"):
        floor_plan(1, power, RackLimits(cooling_w=8_000), SiteLimits())


CAP = CapTerms(
    tdp_w=700, devices_per_node=8, compute_frac=0.7, step_time_s=6.0, tokens_per_step=16_000_000,
    devices=16_384, usd_per_device_hour=2.0, exponent=0.4,
)  # fmt: skip
POWER = SitePower(node_rated_w=10_200, pue=1.3, network_frac=0.1, usd_per_kwh=0.0862)


def test_cap_of_600_watts_costs_5_to_7_per_cent_of_compute():
    for exponent, share in ((1 / 3, 0.950), (1 / 2, 0.926)):
        terms = CAP.model_copy(update={"exponent": exponent, "compute_frac": 1.0})
        assert 6.0 / cap_point(600, terms, POWER).step_time_s == pytest.approx(share, abs=1e-3)


def test_cheapest_cap_against_a_scan():
    for price, energy in ((2.0, 0.0862), (0.05, 0.30), (0.0, 0.1)):
        terms = CAP.model_copy(update={"usd_per_device_hour": price})
        power = POWER.model_copy(update={"usd_per_kwh": energy})
        scan = min(
            (cap_point(w, terms, power) for w in range(210, 701)),
            key=lambda p: p.usd_per_million_tokens,
        )
        best = cheapest_cap(terms, power)
        assert best.usd_per_million_tokens <= scan.usd_per_million_tokens * (1 + 1e-9)
        assert best.cap_w == pytest.approx(scan.cap_w, abs=1.5)
    assert cheapest_cap(CAP, POWER).cap_w == pytest.approx(700)  # dear devices run uncapped


@given(st.floats(220, 699))
def test_a_lower_cap_is_never_faster(cap):
    lower, upper = cap_point(cap * 0.95, CAP, POWER), cap_point(cap, CAP, POWER)
    assert lower.step_time_s >= upper.step_time_s
    assert lower.node_w <= upper.node_w


def _parts(nodes, nics, switch, gbps, **plan):
    return fabric_parts(
        FabricPlan(nodes=nodes, nics_per_node=nics, nic_gbps=gbps, **plan),
        switch_part(switch), optic_part("osfp-400g"), BOOK, 51e6,
    )  # fmt: skip


def test_1024_devices_on_radix_64():
    fabric = _parts(128, 8, "qm9700", 400)
    assert (fabric.tiers, fabric.leaves, fabric.spines, fabric.switches) == (2, 32, 16, 48)
    assert (fabric.host_links, fabric.trunk_links, fabric.cables) == (1024, 1024, 2048)
    assert fabric.optics == 4096 and fabric.optics_w == 4096 * 9
    assert fabric.usd is None and fabric.switch_w is None
    assert fabric.not_priced == ("part_price.qm9700", "part_price.osfp-400g", "part_price.cable")
    assert fabric.usd_by_share == pytest.approx(0.2 * 51e6)
    assert any("network.opex.infiniband" in n for n in fabric.notes)


def test_superpod_unit_of_256_devices_has_8_leaves():
    assert _parts(32, 8, "qm9700", 400, tiers=2).leaves == 8


def test_reach_of_one_two_three_tiers():
    assert reach(64, 2) == 2048 and reach(64, 3) == 65_536 and reach(144, 2) == 10_368
    full = _parts(8192, 8, "qm9700", 400)
    n = 65_536
    assert full.tiers == 3 and full.switches == 5 * n // 64 and full.trunk_links == 2 * n
    two = _parts(256, 8, "qm9700", 400)
    assert two.switches == 3 * 2048 // 64
    with pytest.raises(InputError, match="reach 65,536"):
        _parts(8193, 8, "qm9700", 400)
    with pytest.raises(InputError, match="2 tiers of radix 64 reach 2,048"):
        _parts(300, 8, "qm9700", 400, tiers=2)


def test_faster_ports_are_split_and_slower_ones_refused():
    assert _parts(256, 8, "sn5600", 400).leaves == 2048 // 64
    with pytest.raises(InputError, match="200 Gb/s, the NICs 400"):
        _parts(16, 8, "qm8700", 400)
    with pytest.raises(InputError, match="no switch 'hub'"):
        switch_part("hub")
    with pytest.raises(InputError, match="no optic 'lamp'"):
        optic_part("lamp")


@given(st.integers(1, 400), st.sampled_from([1.0, 2.0, 3.0, 7.0]))
def test_fabric_connects_everything_and_no_port_is_used_twice(nodes, over):
    fabric = _parts(nodes, 8, "qm9700", 400, oversubscription=over)
    ports = 64
    assert fabric.ports_used <= fabric.switches * ports
    assert fabric.host_links == nodes * 8
    if fabric.tiers > 1:
        down, up = ports_down_up(ports, over)
        assert down + up <= ports
        assert fabric.leaves * down >= fabric.host_links
        assert fabric.trunk_links >= fabric.host_links / over / (4 - fabric.tiers) * 0.99


def test_oversubscription_saves_switches_and_bisection():
    full, thin = _parts(512, 8, "qm9700", 400), _parts(512, 8, "qm9700", 400, oversubscription=3)
    assert thin.switches < full.switches
    assert thin.bisection_bytes_per_s < full.bisection_bytes_per_s / 2


@pytest.mark.parametrize(("nodes", "over"), [(128, 1), (100, 1), (20, 1), (20, 2), (300, 3)])
def test_uplinks_carry_what_hangs_on_the_leaf_and_no_more(nodes, over):
    """A fat tree link by link: each leaf by the NICs that it has, counted without the formula."""
    found = _parts(nodes, 8, "qm9700", 400, oversubscription=over)
    down = 64 * over // (over + 1)
    per_rail = [nodes // -(-nodes // down)] * -(-nodes // down)
    for i in range(nodes - sum(per_rail)):
        per_rail[i] += 1
    least = 8 * sum(-(-n // over) for n in per_rail)
    assert found.leaves == 8 * len(per_rail)
    assert least <= found.trunk_links <= least + found.leaves
    assert found.spines == -(-found.trunk_links // 64)
    if over == 1:
        assert found.trunk_links >= nodes * 8  # nothing waits for an uplink


def test_parts_are_priced_when_the_book_has_all_of_them():
    figure = BOOK.get("device_price.h100-sxm.server", "USD/device").model_copy(
        update={"unit": "USD/part", "value": 100.0, "low": None, "high": None}
    )
    book = BOOK.override({f"part_price.{n}": figure for n in ("qm9700", "osfp-400g", "cable")})
    plan = FabricPlan(nodes=128, nics_per_node=8, nic_gbps=400)
    fabric = fabric_parts(plan, switch_part("qm9700"), optic_part("osfp-400g"), book, 0)
    assert fabric.usd == pytest.approx(100 * (48 + 4096 + 2048))


def test_effort_of_a_fabric_is_a_stated_input():
    assert _parts(16, 8, "qm9700", 400, kind="roce").operating_usd_per_year is None
    figure = BOOK.get("device_price.h100-sxm.server", "USD/device").model_copy(
        update={"unit": "USD/year", "value": 80_000.0, "low": None, "high": None}
    )
    plan = FabricPlan(nodes=16, nics_per_node=8, nic_gbps=400, kind="roce")
    book = BOOK.override({"network.opex.roce": figure})
    fabric = fabric_parts(plan, switch_part("qm9700"), optic_part("osfp-400g"), book, 0)
    assert fabric.operating_usd_per_year == 80_000.0 and fabric.notes == ()
    both = book.override({"network.opex.infiniband": figure.model_copy(update={"value": 120_000})})
    fabric = fabric_parts(plan, switch_part("qm9700"), optic_part("osfp-400g"), both, 0)
    assert fabric.operating_by_kind == {"infiniband": 120_000.0, "roce": 80_000.0}


def test_every_part_has_a_source():
    switches, optics = parts()
    assert all(p.source and p.as_of for p in itertools.chain(switches.values(), optics.values()))


def test_host_lanes_and_memory():
    check = host_check(8, 8, 8, 160, 3e12, 2e12)
    assert check.lanes_needed == 288 and not check.lanes_ok and not check.memory_ok
    assert host_check(4, 4, 4, 160, 1e12, 2e12).lanes_ok
    unstated = host_check(8, 8, 8, None, 1e12, 2e12)
    assert unstated.lanes_needed == 288 and unstated.lanes_ok is None and unstated.memory_ok


def test_tokens_to_target_limits():
    assert tokens_to_target(1e12, 1e6, 1e6, 1e7) == pytest.approx(1e12)
    # Far below the critical batch tokens are free of it; at the critical batch they double.
    assert tokens_to_target(1e12, 1.0, 1e7, 1e7) == pytest.approx(2e12, rel=1e-6)


@given(st.floats(1e9, 1e14), st.floats(1.01, 100))
def test_critical_batch_grows_with_tokens_as_the_law_says(tokens, factor):
    a, b = critical_batch(BOOK, tokens), critical_batch(BOOK, tokens * factor)
    assert b.tokens / a.tokens == pytest.approx(factor**0.462)
    assert a.low_tokens < a.tokens < a.high_tokens


def test_sweep_is_judged_by_the_way_to_the_target():
    # Step time = fixed bubble + a part in proportion to the batch: the token gets cheaper with
    # the batch without end, the way to the target does not.
    batches = [2**k * 1e5 for k in range(12)]
    steps = [(b, 1.0 + b / 1e6, 10 * (1.0 + b / 1e6)) for b in batches]
    critical = critical_batch(BOOK, 1e11)
    sweep = sweep_to_target(steps, 1e11, 1e6, critical)
    assert sweep.fastest_step_usd == len(batches) - 1
    # Continuous optimum of (1/B + 1/b0)(1 + B/Bc) is sqrt(b0 Bc); the grid's is next to it.
    for index, c in zip(sweep.best, critical.each(), strict=True):
        best = math.sqrt(1e6 * c)
        assert batches[index] / best < 2 and best / batches[index] < 2
        assert index < len(batches) - 1
    assert sweep.best[0] <= sweep.best[1] <= sweep.best[2]
    with pytest.raises(InputError):
        sweep_to_target([], 1e11, 1e6, critical)
    with pytest.raises(InputError):
        critical_batch(BOOK, -1.0)


def test_18_per_cent_of_32_devices():
    assert idle_devices(32, 0.18) == pytest.approx(5.76)
    assert devices_for_equal_work(32, 0.18) == pytest.approx(7.02, abs=0.01)
    with pytest.raises(InputError):
        devices_for_equal_work(32, 1.0)


def test_recovered_time_is_what_a_shorter_run_saves():
    worth = recovered(1000, 0.3, 0.1, 2.0, 3600 * 100)
    # 700 useful of 1,000; with 100 points back the same 70,000 useful hours take 87.5 h.
    assert worth.device_hours == pytest.approx(1000 * (100 - 87.5))
    assert worth.usd == pytest.approx(2.0 * 12_500)
    assert worth.extra_work_frac == pytest.approx(1 / 7)
    assert recovered(1000, 0.3, 0.0, 2.0, 3600).usd == 0
    with pytest.raises(InputError, match="at most what is idle"):
        recovered(1000, 0.1, 0.2, 2.0, 3600)
    assert yearly_value_usd(24_576, 0.05, 2.35) == pytest.approx(24_576 * 0.05 * 8766 * 2.35)


def test_worth_for_a_job_its_cluster_and_a_fleet():
    worth = worth_of(256, 0.25, 0.05, 3.0, 30 * 86_400.0, 10_000)
    # The job: 256 devices for 30 days at 75 % useful; at 80 % it takes 75/80 of the time.
    hours = 256 * 720
    assert worth.job.device_hours == pytest.approx(hours * (1 - 75 / 80))
    assert worth.job.usd == pytest.approx(3.0 * hours * (1 - 75 / 80))
    assert worth.cluster_usd_per_year == pytest.approx(256 * 0.05 * 3.0 * 8766)
    assert worth.fleet_usd_per_year == pytest.approx(10_000 * 0.05 * 3.0 * 8766)
    capped = worth_of(8, 0.02, 0.05, 3.0, 3600.0)
    assert capped.points_frac == 0.02 and capped.fleet_usd_per_year is None
