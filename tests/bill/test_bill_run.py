"""Whole-run invoices: exact sums however cut, failures against simulation, a spreadsheet's path."""

import csv
import io
import math
import random
import tomllib
from datetime import date
from fractions import Fraction
from importlib import resources

import pytest
from bill_fixtures import CAUSE_S, estimate, use
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.bill.compare import compare
from gangsaw.bill.goodput import (
    daly_interval_s,
    expected_wall_s,
    job_mtbf_s,
    young_interval_s,
)
from gangsaw.bill.rates import flat, rented
from gangsaw.bill.run import (
    MONTH_S,
    Pricing,
    million_tokens_invoice,
    month_invoice,
    ramp_steps,
    run_account,
    run_invoice,
    step_invoice,
    terms_of_book,
)
from gangsaw.bill.use import use_of_plan, use_of_ranks, use_of_timeline
from gangsaw.errors import InputError
from gangsaw.read.prices import shipped_prices
from gangsaw.report.invoice import invoice_csv
from gangsaw.schedule import generate
from gangsaw.simulate.record import simulate
from gangsaw.simulate.timeline import Timeline
from gangsaw.simulate.times import StageTimes
from gangsaw.spec.invoice import RateItem, Rates, RunTerms

BOOK = shipped_prices()
TODAY = date(2026, 11, 30)
OWNED = Rates(
    name="owned",
    items=(
        RateItem(item="devices", spending="capital", usd_per_device_hour=1.1),
        RateItem(item="fabric", spending="capital", usd_per_device_hour=0.3),
        RateItem(
            item="energy",
            spending="operating",
            usd_per_device_hour=0.12,
            unused_usd_per_device_hour=0.03,
        ),
    ),
)
PRICINGS = [
    Pricing(rented(BOOK, "h100-sxm"), BOOK, TODAY),
    Pricing(OWNED, BOOK, TODAY),
    Pricing(flat(0.0), BOOK, TODAY),
]


def check_sums(invoice):
    seconds = [x.device_s for x in invoice.lines]
    money = [x.usd for x in invoice.lines]
    assert invoice.device_s == invoice.devices * invoice.wall_s
    assert sum(map(Fraction, seconds)) == Fraction(invoice.device_s)
    assert sum(map(Fraction, money)) == Fraction(invoice.usd)
    assert sum(seconds) == invoice.device_s and sum(money) == invoice.usd
    for by in ("cause", "stage", "tier", "item", "spending", "phase"):
        totals = invoice.totals(by).values()
        assert sum(s for s, _ in totals) == invoice.device_s
        assert sum(u for _, u in totals) == invoice.usd


terms_drawn = st.builds(
    RunTerms,
    tokens=st.floats(1e8, 1e13),
    start_s=st.floats(0, 1e5),
    eval_every_steps=st.integers(0, 1000),
    eval_tokens=st.floats(0, 1e8),
    device_mtbf_h=st.none() | st.floats(2e4, 1e6),
    restart_s=st.floats(0, 3600),
    checkpoint_block_s=st.floats(0.1, 100),
    straggler_frac=st.floats(0, 0.5),
    checkpoint_bytes=st.floats(0, 1e13),
    checkpoints_kept=st.integers(0, 10),
    restore_egress=st.booleans(),
)
causes_drawn = st.dictionaries(
    st.sampled_from([*sorted(CAUSE_S), "unallocated"]), st.floats(1e-3, 50), min_size=1
)


@settings(deadline=None)
@given(causes_drawn, st.integers(1, 4096), terms_drawn, st.sampled_from(PRICINGS))
def test_run_and_month_sum_exactly(causes, devices, terms, pricing):
    step = use(causes, devices)
    for make in (run_invoice, month_invoice):
        check_sums(make(step, terms, pricing))
    check_sums(step_invoice(step, pricing))
    check_sums(million_tokens_invoice(step, pricing))
    assert month_invoice(step, terms, pricing).wall_s == pytest.approx(MONTH_S)


def test_spreadsheet_path_gives_the_same_total():
    """From the TOML text and the CSV alone: sum of hours times the price that stands there."""
    terms = RunTerms(tokens=5e10, start_s=600, checkpoint_bytes=2e12, checkpoints_kept=3)
    invoice = run_invoice(use(), terms, Pricing(rented(BOOK, "h100-sxm", "spot"), BOOK, TODAY))
    table = tomllib.loads(resources.files("gangsaw.catalog").joinpath("prices.toml").read_text())
    price = table["device_hour"]["h100-sxm"]["spot"]["value"]
    gb_month = table["storage"]["object"]["standard"]["value"]
    rows = list(csv.DictReader(io.StringIO(invoice_csv(invoice))))
    hours = sum(float(r["device_s"]) for r in rows) / 3600
    steps = 50_000
    wall_h = (steps * sum(CAUSE_S.values()) + 600) / 3600
    assert hours == pytest.approx(64 * wall_h, rel=1e-12)
    storage = 2e12 * 3 / 1e9 * wall_h / (365.25 * 24 / 12) * gb_month
    assert sum(float(r["usd"]) for r in rows) == pytest.approx(hours * price + storage, rel=1e-12)
    assert sum(float(r["usd"]) for r in rows) == invoice.usd
    assert "device_hour.h100-sxm.spot" in invoice.figures
    assert "storage.object.standard" in invoice.figures
    assert any("staff" in x for x in invoice.not_billed)


def test_tags_split_capital_and_operating():
    invoice = step_invoice(use(), Pricing(OWNED, BOOK, TODAY))
    hours = 64 * sum(CAUSE_S.values()) / 3600
    kinds = invoice.totals("spending")
    assert kinds["capital"][1] == pytest.approx(hours * 1.4)
    assert kinds["operating"][1] == pytest.approx(hours * 0.12)
    assert kinds["capital"][0] == invoice.device_s and kinds["operating"][0] == 0.0


def test_unloaded_hours_draw_idle_power():
    causes = {"compute": 3.0, "unallocated": 1.0}
    invoice = step_invoice(use(causes, 10), Pricing(OWNED, BOOK, TODAY))
    energy = invoice.totals("item")["energy"][1]
    assert energy == pytest.approx(10 / 3600 * (3 * 0.12 + 1 * 0.03))


def test_reserved_is_capital_and_on_demand_operating():
    for offer, kind in (("on-demand", "operating"), ("reserved-1y", "capital")):
        invoice = step_invoice(use(), Pricing(rented(BOOK, "h100-sxm", offer), BOOK, TODAY))
        assert list(invoice.totals("spending")) == [kind]


def test_staff_is_billed_by_time_and_else_said_to_be_missing():
    figure = BOOK.get("device_price.h100-sxm.server", "USD/device").model_copy(
        update={"unit": "USD/year", "value": 1e6, "low": None, "high": None}
    )
    staffed = Pricing(rented(BOOK, "h100-sxm"), BOOK.override({"staff.team.year": figure}), TODAY)
    terms = RunTerms(tokens=1e11)
    month = month_invoice(use(), terms, staffed)
    assert month.totals("item")["staff"][1] == pytest.approx(1e6 / 12)
    assert month.not_billed == ()
    assert step_invoice(use(), staffed).not_billed == ("staff (billed by time: a run or a month)",)
    assert run_invoice(use(), terms, PRICINGS[0]).not_billed == ("staff (no figure under staff.*)",)


def test_old_figures_are_marked():
    invoice = step_invoice(use(), Pricing(rented(BOOK, "h800-sxm"), BOOK, TODAY))
    assert invoice.stale == ("device_hour.h800-sxm.on-demand",)
    fresh = step_invoice(use(), Pricing(rented(BOOK, "h100-sxm"), BOOK, TODAY))
    assert fresh.stale == ()


def test_batch_ramp_against_a_step_by_step_count():
    # Batch in steps of the tokens already seen, small against the ramp; counted one by one.
    full, start, ramp = 1000.0, 0.25, 2e6
    seen = steps = 0.0
    while seen < ramp:
        batch = full * (start + (1 - start) * seen / ramp)
        seen += batch
        steps += 1
    assert ramp_steps(full, ramp, start) == pytest.approx(steps, rel=2e-3)


def test_ramp_pays_per_step_causes_once_a_step():
    step = use({"compute": 4.0, "bubble": 1.0}, 8, 1000)
    terms = RunTerms(tokens=3e6, ramp_tokens=1e6, ramp_start_frac=0.5)
    account, _, _ = run_account(step, terms)
    steps = 1000 * math.log(2) / 0.5
    got = {slot[1]: s for slot, s in account.slots.items() if slot[0] == "batch ramp"}
    assert got["compute"] == pytest.approx(8 * 4.0 * 1000)
    assert got["bubble"] == pytest.approx(8 * 1.0 * steps)
    assert account.wall_s == pytest.approx(2000 * 5.0 + 4000 + steps)


def test_evaluation_is_a_third_of_a_training_pass():
    step = use({"compute": 3.0, "optimizer": 1.0, "recompute": 1.0}, 1, 1000)
    account, _, _ = run_account(step, RunTerms(tokens=1e6, eval_every_steps=100, eval_tokens=500))
    got = {s[1]: v for s, v in account.slots.items() if s[0] == "evaluation"}
    assert got == {"compute": pytest.approx(10 * 0.5 * 3.0 / 3)}


def _one_run(rng, work_s, block_s, interval_s, mtbf_s, restart_s):
    """A run event by event: exponential failures, work since the last save lost."""
    clock = done = 0.0
    failure = rng.expovariate(1 / mtbf_s)
    while done < work_s:
        end = clock + interval_s + block_s
        if failure >= end:
            clock, done = end, done + interval_s
            continue
        clock = failure
        while True:  # restarts fail too
            failure = clock + rng.expovariate(1 / mtbf_s)
            if failure >= clock + restart_s:
                clock += restart_s
                break
            clock = failure
    return clock


@pytest.mark.parametrize(
    ("block", "interval", "mtbf", "restart"),
    [(5, 200, 3000, 60), (20, 400, 900, 120), (1, 50, 200, 20)],
)
def test_expected_wall_time_against_simulated_runs(block, interval, mtbf, restart):
    rng = random.Random(7)
    work = interval * 40
    runs = [_one_run(rng, work, block, interval, mtbf, restart) for _ in range(1500)]
    mean = sum(runs) / len(runs)
    error = math.sqrt(sum((x - mean) ** 2 for x in runs)) / len(runs)
    assert abs(expected_wall_s(work, block, interval, mtbf, restart) - mean) < 4 * error


def test_daly_interval_is_the_minimum_and_near_young():
    for block, mtbf in ((1.0, 11134.0), (60.0, 11134.0), (300.0, 2000.0)):
        best = daly_interval_s(block, mtbf)
        wall = [expected_wall_s(1e6, block, best * f, mtbf, 600) for f in (0.7, 1.0, 1.4)]
        assert wall[1] < wall[0] and wall[1] < wall[2]
    assert daly_interval_s(1.0, 1e6) == pytest.approx(young_interval_s(1.0, 1e6), rel=2e-3)
    # Llama 3: a failure every 3.09 h, a one-minute save: 19.3 minutes to first order.
    assert young_interval_s(60, 3.093 * 3600) / 60 == pytest.approx(19.3, abs=0.1)


def test_mean_time_of_the_llama_3_job():
    hours = BOOK.value("failure.device.mtbf", "hours")
    assert job_mtbf_s(hours, 16384) / 3600 == pytest.approx(3.093, rel=1e-3)
    assert 54 * 24 * 3600 / job_mtbf_s(hours, 16384) == pytest.approx(419, rel=1e-3)


def test_no_progress_is_refused():
    terms = RunTerms(
        tokens=1e9, device_mtbf_h=1, restart_s=600, checkpoint_block_s=10, checkpoint_interval_s=1e5
    )
    with pytest.raises(InputError, match="leaves no room"):
        run_account(use(devices=1024), terms)
    free = RunTerms(tokens=1e9, device_mtbf_h=1e5, checkpoint_block_s=0)
    with pytest.raises(InputError, match="no best interval"):
        run_account(use(), free)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0}, {"tokens": 1e9, "ramp_tokens": 2e9},
        {"tokens": 1e9, "ramp_tokens": 1e8, "ramp_start_frac": 0},
        {"tokens": 1e9, "straggler_frac": 1.0}, {"tokens": math.nan},
        {"tokens": 1e9, "restart_s": -1},
    ],
)  # fmt: skip
def test_wrong_terms(wrong):
    with pytest.raises(ValueError):
        RunTerms(**wrong)


def test_terms_of_the_book_name_their_figures():
    terms = terms_of_book(BOOK, 1e12, 405e9)
    assert terms.checkpoint_bytes == pytest.approx(5.67e12)
    assert set(terms.figures) <= set(BOOK.figures)


def test_use_of_a_plan_splits_communication_by_tier():
    step = use_of_plan(estimate(), 2**22)
    assert step.devices == 256
    by = {(x.cause, x.tier): x.device_s for x in step.lines}
    assert by["dp_comm", "pod"] == pytest.approx(256 * 0.15)
    assert by["dp_comm", "rack"] == pytest.approx(256 * 0.05)
    assert by["tp_comm", "node"] == pytest.approx(256 * 0.7)
    assert math.fsum(x.device_s for x in step.lines) == pytest.approx(step.device_s, rel=1e-12)
    check_sums(step_invoice(step, PRICINGS[0]))


def test_use_of_a_timeline_fills_waiting_with_bubble():
    rows = [("0", "compute", 8.0), ("0", "tp_comm", 1.0), ("1", "compute", 9.0)]
    step = use_of_ranks("t", rows, 16, 10.0, 1000)
    by = {(x.stage, x.cause): x.device_s for x in step.lines}
    assert by["0", "bubble"] == pytest.approx(16) and by["1", "bubble"] == pytest.approx(16)
    invoice = step_invoice(step, PRICINGS[0])
    check_sums(invoice)
    assert invoice.totals("stage")["0"][0] == pytest.approx(160)
    with pytest.raises(InputError, match="rank 0 is busy"):
        use_of_ranks("t", rows, 16, 8.0, 1000)


def test_simulated_timeline_is_billed_by_stage():
    ranks, microbatches = 4, 8
    timeline = simulate(
        generate("1f1b", ranks, microbatches), StageTimes.of(ranks, 1.0, 1.0, 1.0), interpreted=True
    )
    step = use_of_timeline(timeline, 8, 2**20)
    assert (step.devices, step.source) == (32, "simulation")
    assert step.step_time_s == pytest.approx(3 * (microbatches + ranks - 1))
    invoice = step_invoice(step, PRICINGS[0])
    check_sums(invoice)
    # Every rank works 24 of 33 units; the rest of each is bubble.
    assert invoice.idle_frac == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
    assert {k: v[0] for k, v in invoice.totals("stage").items()} == {
        str(r): pytest.approx(8 * 33.0) for r in range(ranks)
    }


def test_measured_timeline_takes_the_same_way():
    table = {
        "rank": [0, 0, 1, 1], "stream": ["compute"] * 4, "kind": ["F", "idle", "F", "idle"],
        "stage": [0, -1, 1, -1], "microbatch": [0, -1, 0, -1], "start_s": [0.0, 2.0, 0.0, 3.0],
        "end_s": [2.0, 4.0, 3.0, 4.0], "cause": ["compute", "straggler", "compute", "dp_comm"],
    }  # fmt: skip
    step = use_of_timeline(Timeline.from_table(table), 16, 1000)
    assert step.source == "measurement"
    causes = step_invoice(step, PRICINGS[0]).totals("cause")
    assert {c: s for c, (s, _) in causes.items()} == {
        "compute": 80.0, "straggler": 32.0, "dp_comm": 16.0
    }  # fmt: skip


def test_difference_of_two_bills_is_explained_to_the_last_line():
    terms = RunTerms(tokens=1e10, device_mtbf_h=5e4, restart_s=600, checkpoint_block_s=5)
    less = {**CAUSE_S, "bubble": 0.4, "ep_comm": 0.3}
    a = run_invoice(use(), terms, PRICINGS[0])
    b = run_invoice(use(less), terms, Pricing(rented(BOOK, "h100-sxm", "aws"), BOOK, TODAY))
    c = compare(a, b)
    assert math.fsum(x.usd for x in c.lines) == pytest.approx(b.usd - a.usd, rel=1e-9)
    for x in c.lines:
        assert x.time_usd + x.price_usd == pytest.approx(x.usd, abs=1e-6 * a.usd)
    assert math.fsum(x.price_usd for x in c.lines) == pytest.approx(
        b.device_s / 3600 * (6.88 - 2.95), rel=1e-9
    )
    same = compare(a, a)
    assert all(x.usd == 0 for x in same.lines)
    with pytest.raises(InputError, match="no common line"):
        compare(a, step_invoice(use(), PRICINGS[0]))
    other = run_invoice(use(), terms.model_copy(update={"tokens": 2e10}), PRICINGS[0])
    with pytest.raises(InputError, match="compare equal runs"):
        compare(a, other)
