"""Whole bills derived again by hand from the text of the price book and the lines of one step."""

import csv
import io
import json
import math
import tomllib
from importlib import resources

import pytest

from gangsaw.cli.main import run

JOB = ["bill", "llama-3.1-70b", "h100-sxm:256", "--tp", "4", "--pp", "4", "--seq-len", "8192",
       "--global-batch", "512"]  # fmt: skip
DEVICES, TOKENS = 256, 512 * 8192
PER_STEP = {"bubble", "dp_comm", "optimizer", "host"}
FORWARD = {"compute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "bubble", "unallocated"}
YEAR_H = 8766
MONTH_S = YEAR_H / 12 * 3600
CENT = 0.005

RUN = {
    "tokens": 1e12, "start_s": 1800.0, "ramp_tokens": 20e9, "ramp_start_frac": 0.25,
    "eval_every_steps": 1000, "eval_tokens": 4e6, "straggler_frac": 0.02,
    "checkpoint_bytes": 9e11, "checkpoints_kept": 3, "restore_egress": "true",
}  # fmt: skip
OWN = {
    "devices_usd": 32000.0, "fabric_usd": 8000.0, "building_usd": 18000.0, "life_years": 5.0,
    "building_life_years": 20.0, "discount_frac": 0.08, "residual_frac": 0.3,
    "residual_years": 3.0, "maintenance_frac": 0.03, "staff_usd_per_year": 500.0,
    "other_usd_per_hour": 0.02, "wall_w": 1500.0, "idle_wall_w": 320.0, "usd_per_kwh": 0.0862,
    "utilisation_frac": 0.85,
}  # fmt: skip


def price(key):
    table = tomllib.loads(resources.files("gangsaw.catalog").joinpath("prices.toml").read_text())
    for part in key.split("."):
        table = table[part]
    return table["value"]


def bill(*flags):
    code, out, err = run([*JOB, *flags, "--json"])
    assert code == 0, err
    answer = json.loads(out)
    for x in answer["invoices"]:
        assert sum(line["usd"] for line in x["lines"]) == x["usd"]
        assert math.fsum(line["device_s"] for line in x["lines"]) == x["device_s"]
        assert x["device_s"] == x["devices"] * x["wall_s"]
    return answer


def toml(path, fields):
    path.write_text("".join(f"{k} = {v}\n" for k, v in fields.items()))
    return str(path)


def causes(answer):
    """Seconds of the average device by cause; their sum is the step."""
    return {x["cause"]: x["device_s"] / DEVICES for x in answer["lines"]}


def daly_s(block_s, mtbf_s):
    half = block_s / (2 * mtbf_s)
    return math.sqrt(2 * block_s * mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - block_s


def wall(work_s, lost_per_h):
    """Wall seconds and saves of `work_s` with so many losses an hour of the job."""
    block, restart, mean = price("failure.checkpoint.block"), price("failure.restart.time"), 3600
    mean /= lost_per_h
    tau = daly_s(block, mean)
    grown = mean * math.exp(restart / mean) * math.expm1((tau + block) / mean) * work_s / tau
    return grown, work_s / tau * block


def work(step, start_s, ramp):
    """Seconds of work of RUN: start, ramp, full steps, evaluations, stragglers."""
    by = causes(step)
    ramped = RUN["ramp_tokens"] if ramp else 0.0
    full = math.ceil((RUN["tokens"] - ramped) / TOKENS)
    steps = ramped / TOKENS * math.log(4) / 0.75
    seconds = full * sum(by.values()) + start_s
    seconds += sum(s * (steps if c in PER_STEP else ramped / TOKENS) for c, s in by.items())
    passes = math.floor((full + steps) / RUN["eval_every_steps"]) * RUN["eval_tokens"] / TOKENS
    seconds += passes / 3 * sum(s for c, s in by.items() if c in FORWARD)
    return seconds / 0.98


def test_rented_run_with_failures_saves_and_energy():
    answer = bill("--tokens", "1T", "--per", "run")
    (invoice,) = answer["invoices"]
    steps = math.ceil(1e12 / TOKENS)
    seconds, _ = wall(steps * sum(causes(answer).values()), DEVICES / price("failure.device.mtbf"))
    assert invoice["wall_s"] == pytest.approx(seconds, rel=1e-12)
    params = 70_553_706_496
    kept_gb = params * price("failure.checkpoint.bytes") * 3 / 1e9
    usd = DEVICES * seconds / 3600 * price("device_hour.h100-sxm.on-demand")
    usd += kept_gb * seconds / MONTH_S * price("storage.object.standard")
    assert invoice["usd"] == pytest.approx(usd, abs=CENT)
    kw = 32 * price("power.node.h100-sxm") / 1e3 * price("power.measured.share")
    kwh = kw * (1 + price("power.network.share")) * price("pue.site.new") * seconds / 3600
    assert answer["energy"]["kwh"] == pytest.approx(kwh, rel=1e-12)
    assert answer["energy"]["usd"] == pytest.approx(
        kwh * price("electricity.us.industrial"), abs=CENT
    )
    assert answer["energy"]["kg_co2"] == pytest.approx(kwh * price("carbon.us.mean"), rel=1e-12)


def test_spot_run_with_preemptions_lost_work_and_restores(tmp_path):
    terms = toml(tmp_path / "run.toml", RUN)
    answer = bill("--run", terms, "--offer", "spot", "--per", "run")
    (invoice,) = answer["invoices"]
    lost = DEVICES / price("failure.device.mtbf") + 32 * price("spot.preemption.rate")
    seconds, _ = wall(work(answer, 1800.0, ramp=True), lost)
    usd = DEVICES * seconds / 3600 * price("device_hour.h100-sxm.spot")
    usd += 900 * 3 * seconds / MONTH_S * price("storage.object.standard")
    usd += seconds / 3600 * lost * 900 * price("egress.internet.aws")
    assert invoice["usd"] == pytest.approx(usd, abs=CENT)


def annuity(cost, left, years):
    """Equal yearly payments whose present value is the cost less that of what is left."""
    present = sum(1.08**-y for y in range(1, round(years) + 1))
    return (cost - left / 1.08**years) / present


def test_owned_month_with_annuity_residual_and_unloaded_failures(tmp_path):
    own, terms = toml(tmp_path / "own.toml", OWN), toml(tmp_path / "run.toml", RUN)
    answer = bill("--own", own, "--run", terms, "--per", "month")
    (invoice,) = answer["invoices"]
    hours = YEAR_H * 0.85
    left = 0.3 ** (5 / 3)
    fixed = annuity(40000, 40000 * left, 5) + annuity(18000, 0, 20) + 0.03 * 40000 + 500
    hourly = fixed / hours + 0.02 / 0.85 + 0.32 * 0.0862 * 0.15 / 0.85
    work_s = work(answer, 0.0, ramp=False)
    lost = DEVICES / price("failure.device.mtbf")
    seconds, saves_s = wall(work_s, lost)
    down_s = (seconds - work_s - saves_s) * MONTH_S / seconds
    usd = DEVICES * MONTH_S / 3600 * hourly
    usd += DEVICES / 3600 * 0.0862 * ((MONTH_S - down_s) * 1.5 + down_s * 0.32)
    usd += 2700 * price("storage.object.standard")
    usd += MONTH_S / 3600 * lost * 900 * price("egress.internet.aws")
    assert invoice["usd"] == pytest.approx(usd, abs=CENT)


def test_owned_step_and_tokens_from_the_book():
    step, million = bill("--offer", "owned", "--per", "step,million-tokens")["invoices"]
    server, share = price("device_price.h100-sxm.server"), price("network.capital.share")
    rated_w = price("power.node.h100-sxm") / 8 * (1 + price("power.network.share"))
    hour = server / (1 - share) * (1 - price("residual.server.3y") ** (5 / 3)) / 5 / YEAR_H
    hour += rated_w * price("facility.new-build.ai") / 20 / YEAR_H
    drawn_kw = rated_w * price("power.measured.share") * price("pue.site.new") / 1e3
    hour += drawn_kw * price("electricity.us.industrial")
    usd = step["device_s"] / 3600 * hour
    assert step["usd"] == pytest.approx(usd, abs=CENT)
    assert million["usd"] == pytest.approx(usd * 1e6 / TOKENS, abs=CENT)


def test_owning_against_renting_takes_what_is_stated_as_owned(tmp_path):
    answer = bill("--own", toml(tmp_path / "own.toml", OWN), "--facility", "--per", "step")
    curve = answer["site"]["own_or_rent"]["curve"]
    month_h, rent = YEAR_H / 12, price("device_hour.h100-sxm.on-demand")
    for month in (0, 12, 36):
        running = (0.85 * 1.5 + 0.15 * 0.32) * 0.0862 + (0.03 * 40000 + 500) / YEAR_H + 0.02
        owned = 58000 + month * month_h * running
        owned -= 40000 * 0.3 ** (month / 36) + 18000 * (1 - month / 240)
        assert curve[month]["owned_usd"] == pytest.approx(owned, abs=CENT)
        assert curve[month]["rented_usd"] == pytest.approx(month * month_h * 0.85 * rent, abs=CENT)


def test_owning_is_judged_against_the_offer_asked_for():
    spot = bill("--offer", "spot", "--facility", "--per", "step")["site"]["own_or_rent"]
    lost = 32 * price("spot.preemption.rate")
    grown, _ = wall(3600.0, lost)
    year = 12 * YEAR_H / 12 * price("device_hour.h100-sxm.spot") * grown / 3600
    assert spot["curve"][12]["rented_usd"] == pytest.approx(year, abs=CENT)


def test_failures_move_the_run_within_their_ranges():
    answer = bill("--tokens", "1T", "--per", "run")
    spans = {f["key"]: f for f in answer["span"]["figures"]}
    mtbf = spans["failure.device.mtbf"]
    work_s = math.ceil(1e12 / TOKENS) * sum(causes(answer).values())
    for at, usd in ((mtbf["low"], mtbf["usd_at_low"]), (mtbf["high"], mtbf["usd_at_high"])):
        seconds, _ = wall(work_s, DEVICES / at)
        hourly = DEVICES / 3600 * price("device_hour.h100-sxm.on-demand")
        hourly += (
            70_553_706_496 * price("failure.checkpoint.bytes") * 3 / 1e9
            * price("storage.object.standard") / MONTH_S
        )  # fmt: skip
        assert usd == pytest.approx(seconds * hourly, abs=CENT)
    assert mtbf["usd_at_low"] > answer["span"]["usd"] > mtbf["usd_at_high"]


def test_columns_of_the_two_ends_sum_to_the_span(tmp_path):
    table = tmp_path / "bill.csv"
    answer = bill("--tokens", "1T", "--per", "run", "--offer", "owned", "--csv", str(table))
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    for column, end in (("usd_low", "usd_low"), ("usd", "usd"), ("usd_high", "usd_high")):
        assert sum(float(r[column]) for r in rows) == pytest.approx(answer["span"][end], abs=CENT)


def figure(key, unit, value, low, high):
    return (
        f'["{key}"]\nvalue = {value}\nlow = {low}\nhigh = {high}\nunit = "{unit}"\n'
        'currency = "USD"\nsource = "own"\nas_of = "2026-10"\n'
    )


def test_effort_of_the_fabric_is_the_owners_and_one_of_two(tmp_path):
    prices = tmp_path / "p.toml"
    prices.write_text(figure("network.opex.infiniband", "USD/year", 2e5, 1e5, 3e5))
    flags = ("--tokens", "1T", "--per", "run", "--prices", str(prices))
    answer = bill(*flags, "--offer", "owned")
    (invoice,) = answer["invoices"]
    (paid,) = [x["usd"] for x in invoice["lines"] if x["item"] == "network operation"]
    years = invoice["wall_s"] / (YEAR_H * 3600)
    assert paid == pytest.approx(2e5 * years, abs=CENT)
    span = next(f for f in answer["span"]["figures"] if f["key"] == "network.opex.infiniband")
    assert span["usd_at_high"] - span["usd_at_low"] == pytest.approx(2e5 * years, abs=CENT)
    rented = bill(*flags)["invoices"][0]
    assert all(x["item"] != "network operation" for x in rented["lines"])
    with prices.open("a") as file:
        file.write(figure("network.opex.roce", "USD/year", 3e5, 1e5, 3e5))
    both = bill(*flags, "--offer", "owned")["invoices"][0]
    assert all(x["item"] != "network operation" for x in both["lines"])
    assert any("counts, not both" in x for x in both["not_billed"])


def test_break_even_moves_with_the_retrofit_and_upkeep(tmp_path):
    prices = tmp_path / "p.toml"
    text = figure("facility.retrofit.site", "USD/W", 6.0, 4.0, 9.0)
    units = 'unit = "frac"\nsource = "own"\nas_of = "2026-10"\n'
    text += f'["opex.maintenance.share"]\nvalue = 0.03\nlow = 0.02\nhigh = 0.05\n{units}'
    prices.write_text(text)
    answer = bill("--facility", "--per", "step", "--offer", "owned", "--prices", str(prices))
    site = answer["site"]
    cheap, middle, dear = site["own_ends"]["cheap"], site["own_or_rent"], site["own_ends"]["dear"]
    for a, b in ((cheap, middle), (middle, dear)):
        assert a["month_12"]["owned_usd"] < b["month_12"]["owned_usd"]
        assert a["month_12"]["rented_usd"] == b["month_12"]["rented_usd"]
        even = [x["break_even_cash_month"] or math.inf for x in (a, b)]  # none: later than 36
        assert even[0] < even[1]
    assert {"facility.retrofit.site", "opex.maintenance.share"} <= set(site["own_ends"]["figures"])
    used = answer["invoices"][0]["figures"]
    assert "opex.maintenance.share" in used and "facility.new-build.ai" not in used


def test_stated_figures_of_owning_are_not_asked_of_the_book(tmp_path):
    own = toml(tmp_path / "own.toml", OWN)
    figures = bill("--own", own, "--per", "step")["invoices"][0]["figures"]
    assert figures == []
