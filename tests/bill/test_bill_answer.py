"""`gangsaw bill` from flags to document: offers, runs, months, two plans, and wrong inputs."""

import csv
import json
import math
from pathlib import Path

import pytest

from gangsaw.cli.main import run
from gangsaw.report.pdf import find_browser
from gangsaw.spec.result import IDLE_CAUSES

JOB = ["bill", "llama-3.1-8b", "h100-sxm:64", "--tp", "2", "--pp", "2", "--mbs", "1",
       "--seq-len", "4096", "--global-batch", "256"]  # fmt: skip


def bill(*flags):
    code, out, err = run([*JOB, *flags, "--json"])
    assert code == 0, err
    return json.loads(out)


def test_step_lines_are_those_of_the_estimate():
    answer = bill()
    code, out, _ = run(["estimate", *JOB[1:], "--json"])
    assert code == 0
    estimated = json.loads(out)
    step = answer["invoices"][0]
    assert step["basis"] == "step"
    assert math.fsum(x["device_s"] for x in step["lines"]) == step["device_s"]
    assert answer["device_s"] == pytest.approx(64 * estimated["step_time_s"], rel=1e-12)
    for key in ("usd", "idle_device_hours", "usd_per_million_tokens"):
        assert answer[key] == pytest.approx(estimated["bill"][key], rel=1e-9)
    assert answer["memory"] == estimated["memory"]


def test_run_and_month_stand_beside_the_step():
    answer = bill("--tokens", "1T", "--per", "run,month")
    whole, month = answer["invoices"]
    assert (whole["basis"], month["basis"]) == ("run", "month")
    for invoice in (whole, month):
        assert math.fsum(x["usd"] for x in invoice["lines"]) == invoice["usd"]
        assert math.fsum(x["device_s"] for x in invoice["lines"]) == invoice["device_s"]
    assert {x["phase"] for x in whole["lines"]} == {
        "training", "checkpoints", "failures", "services",
    }  # fmt: skip
    assert month["wall_s"] == pytest.approx(365.25 * 86400 / 12)
    months = whole["wall_s"] / month["wall_s"]
    assert whole["usd"] / month["usd"] == pytest.approx(months, rel=1e-3)
    # Energy by another path: 8 nodes of 10.2 kW at 82 %, 10 % of network, PUE 1.3.
    kwh = 8 * 10.2 * 0.82 * 1.1 * 1.3 * month["wall_s"] / 3600
    assert answer["energy"]["kwh"] == pytest.approx(kwh)


def test_old_figures_are_marked_wherever_they_are_used():
    answer = bill("--facility")
    assert "carbon.us.mean" in answer["energy"]["stale"]  # of 2022
    assert set(answer["energy"]["stale"]) <= set(answer["energy"]["figures"])
    site = answer["site"]
    assert "device_price.h100-sxm.server" in site["stale"]  # of 2025-01-31
    code, out, err = run([*JOB, "--facility"])
    assert code == 0, err
    text = " ".join(out.split())
    assert "of its figures, older than a year: carbon.us.mean" in text
    assert text.count("older than a year") == 2


def test_worth_of_points_is_asked_for():
    answer = bill("--tokens", "1T", "--recover", "2.5", "--fleet", "10000")
    worth, last = answer["worth"], answer["invoices"][-1]
    hour = last["usd"] / (last["device_s"] / 3600)
    assert worth["points_frac"] == pytest.approx(0.025)
    assert worth["fleet_usd_per_year"] == pytest.approx(10_000 * 0.025 * hour * 8766)
    useful = (
        1
        - sum(x["device_s"] for x in last["lines"] if x["cause"] in IDLE_CAUSES)
        / (last["device_s"])
    )
    saved = last["device_s"] / 3600 * (1 - useful / (useful + 0.025))
    assert worth["job"]["device_hours"] == pytest.approx(saved)
    for flags in (["--recover", "0"], ["--recover", "200"], ["--fleet", "0"]):
        code, out, err = run([*JOB, *flags])
        assert (code, out) == (2, "") and flags[0] in err


def test_months_of_two_plans_are_told_apart_by_their_tokens(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("tp = 8\npp = 1\nmbs = 1\n")
    flags = ["--tokens", "1T", "--per", "month", "--against", str(other)]
    comparison = bill(*flags)["comparison"]
    assert comparison["usd_a"] == pytest.approx(comparison["usd_b"], rel=1e-3)
    assert comparison["tokens_a"] > 1.1 * comparison["tokens_b"]
    code, out, err = run([*JOB, *flags])
    assert code == 0, err
    assert "B trains" in out and "a million tokens" in out


def test_caps_are_judged_by_what_an_owner_pays():
    site = bill("--facility")["site"]
    caps = site["caps"]["points"]
    assert [c["cap_w"] for c in caps] == pytest.approx([350, 420, 490, 560, 630, 700])
    # Above the measured draw (82 % of 700 W) a cap does nothing; below, compute slows as P^0.4.
    assert caps[-1]["device_clock_frac"] == 1.0
    assert caps[0]["device_clock_frac"] == pytest.approx((350 / 574) ** 0.4)
    owned = bill("--offer", "owned")["invoices"][0]
    paid = math.fsum(x["usd"] for x in owned["lines"] if x["item"] != "energy")
    hour = paid / (owned["device_s"] / 3600)
    assert f"${hour:.2f} a device-hour" in site["caps"]["basis"]
    top = caps[-1]
    energy_usd = top["energy_j_per_step"] / 3.6e6 * 0.0862
    by_hand = (64 * top["step_time_s"] / 3600 * hour + energy_usd) / (256 * 4096) * 1e6
    assert top["usd_per_million_tokens"] == pytest.approx(by_hand, rel=1e-6)


def test_owned_devices_are_capital_and_energy():
    answer = bill("--offer", "owned")
    items = {x["item"]: x["spending"] for x in answer["invoices"][0]["lines"]}
    assert items == {
        "devices": "capital", "fabric": "capital", "building": "capital", "energy": "operating",
    }  # fmt: skip
    assert any("maintenance" in x for x in answer["invoices"][0]["not_billed"])


def test_own_figures_and_terms_come_from_files(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("maintenance_frac = 0.05\nstaff_usd_per_year = 800.0\n")
    terms = tmp_path / "run.toml"
    terms.write_text("tokens = 2e11\nstart_s = 900.0\nramp_tokens = 1e10\nramp_start_frac = 0.1\n")
    answer = bill("--own", str(own), "--run", str(terms), "--per", "run")
    (invoice,) = answer["invoices"]
    assert {"maintenance", "staff"} <= {x["item"] for x in invoice["lines"]}
    assert {"start", "batch ramp"} <= {x["phase"] for x in invoice["lines"]}


def test_two_plans_are_compared_line_by_line(tmp_path):
    second = tmp_path / "plan.toml"
    second.write_text("tp = 1\npp = 4\nmbs = 1\n")
    answer = bill("--against", str(second))
    a, b = answer["invoices"][-1], answer["against"][-1]
    lines = answer["comparison"]["lines"]
    assert math.fsum(x["usd_b"] - x["usd_a"] for x in lines) == pytest.approx(b["usd"] - a["usd"])


def test_files_are_written_and_sum(tmp_path):
    table, page = tmp_path / "bill.csv", tmp_path / "bill.html"
    answer = bill("--csv", str(table), "--html", str(page))
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(r["usd"]) for r in rows) == answer["invoices"][-1]["usd"]
    html = page.read_text()
    assert html.startswith("<!doctype html>") and "Memory of each pipeline stage" in html
    assert "src=" not in html and "href=" not in html


def test_text_is_plain_and_fits():
    code, out, err = run([*JOB, "--tokens", "1T"])
    assert code == 0, err
    assert out.isascii() and max(len(x) for x in out.splitlines()) <= 100
    for word in ("total $", "idle  $", "memory: peak", "failures", "kWh"):
        assert word in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--offer", "weekly"], ["no 'weekly' price", "on-demand"]),
        (["--per", "decade"], ["decade", "Legal: step, million-tokens, run, month"]),
        (["--per", "run"], ["needs the run's tokens"]),
        (["--run", "/nowhere/run.toml"], ["no such file"]),
        (["--csv", "bill.txt"], ["no legal ending"]),
        (["--prices", "/nowhere/prices.toml"], ["no such file"]),
    ],
)
def test_wrong_flags_are_one_line(flags, words):
    code, out, err = run([*JOB, *flags])
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("--run", "tokens = -1\n", ["tokens=-1"]),
        ("--run", "tokens = 1e12\nrestarts = 3\n", ["unknown keys restarts"]),
        ("--run", "start_s = 5.0\n", ["--tokens 15T"]),
        ("--run", "tokens = 1e10\nramp_tokens = 2e10\nramp_start_frac = 0.5\n", ["more than"]),
        ("--own", "price = 3\n", ["unknown keys price"]),
        ("--own", "life_years = 0\n", ["life_years=0"]),
        ("--own", "discount_frac = -0.1\n", ["discount_frac=-0.1"]),
        ("--own", "devices_usd = 1e308\n", ["devices_usd=1e+308", "at most"]),
        ("--run", "tokens = 1e300\n", ["tokens=1e+300", "at most"]),
        ("--run", "tokens = 1e12\nstart_s = 1e300\n", ["start_s=1e+300"]),
        ("--run", "tokens = 1e12\ncheckpoint_interval_s = 1e-300\n", ["at least 0.001"]),
        ("--run", "tokens = 1e12\nstraggler_frac = 0.9999999\n", ["at most 0.99"]),
        ("--facility-file", "[rent]\nusd_per_hour = 1e308\n", ["usd_per_hour=1e+308"]),
    ],
)
def test_wrong_files_are_one_line(tmp_path, name, body, words):
    path = tmp_path / "it.toml"
    path.write_text(body)
    code, _, err = run([*JOB, name, str(path)])
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


def test_bill_by_stage_holds_the_same_step_within_a_few_per_cent():
    plain, staged = bill(), bill("--by-stage")
    invoice = staged["invoices"][0]
    stages = {x["stage"] for x in invoice["lines"]}
    assert stages == {"0", "1", "all"}
    assert math.fsum(x["device_s"] for x in invoice["lines"]) == invoice["device_s"]
    assert staged["device_s"] == pytest.approx(plain["device_s"], rel=0.05)
    causes = {x["cause"] for x in invoice["lines"]}
    assert {"compute", "tp_comm", "bubble", "dp_comm", "optimizer"} <= causes
    code, out, _ = run([*JOB, "--by-stage"])
    assert code == 0 and "idle share by stage: 0 " in out


def test_measured_traces_are_billed_by_the_same_code():
    traces = str(Path(__file__).parents[1] / "data" / "own-run")
    code, out, err = run([*JOB, "--trace", traces, "--json"])
    assert code == 0, err
    invoice = json.loads(out)["invoices"][0]
    assert math.fsum(x["device_s"] for x in invoice["lines"]) == invoice["device_s"]
    assert invoice["device_s"] == pytest.approx(64 * invoice["wall_s"])
    assert len({x["stage"] for x in invoice["lines"]}) > 1
    code, _, err = run([*JOB, "--trace", traces, "--by-stage"])
    assert code == 2 and "one of them" in err
    code, _, err = run([*JOB, "--trace", "/nowhere"])
    assert code == 2 and "no such file" in err


def test_spot_pays_for_preemptions_in_the_run():
    calm = bill("--tokens", "10B", "--per", "run")
    spot = bill("--tokens", "10B", "--per", "run", "--offer", "spot")
    rate = 0.5 * 8 + 64 / 50_677  # preemptions of 8 nodes and failures of 64 devices, an hour
    assert 1 / (spot["terms"]["device_mtbf_h"] / 64) == pytest.approx(rate)
    phases = {x["phase"]: 0.0 for x in spot["invoices"][0]["lines"]}
    for line in spot["invoices"][0]["lines"]:
        phases[line["phase"]] += line["device_s"]
    assert phases["failures"] > 0.2 * phases["training"]
    assert spot["invoices"][0]["wall_s"] > 1.2 * calm["invoices"][0]["wall_s"]
    assert "spot.preemption.rate" in spot["invoices"][0]["figures"]


def test_page_is_printed_to_pdf_where_a_browser_is_at_hand(tmp_path, monkeypatch):
    target = tmp_path / "bill.pdf"
    if find_browser() is not None:
        code, _, err = run([*JOB, "--pdf", str(target)])
        assert code == 0, err
        assert target.read_bytes().startswith(b"%PDF-")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run([*JOB, "--pdf", str(target)])
    assert code == 1 and "--html" in err and len(err.strip().splitlines()) == 1


def test_bills_of_a_month_of_the_same_devices_cost_the_same(tmp_path):
    """Sums in another order differ by rounding: no difference is made of it."""
    other = tmp_path / "other.toml"
    other.write_text("tp = 4\npp = 2\ndp = 8\nmbs = 1\n")
    words = ["--tokens", "1T", "--per", "month", "--against", str(other)]
    code, out, err = run([*JOB, *words])
    assert code == 0, err
    assert "B costs what A costs (" in out
    assert "B costs $" not in out
