"""Money within the ranges of figures: each end is the bill with the figure set there."""

import json

import pytest

from gangsaw.cli.main import run

JOB = ["bill", "llama-3.1-8b", "h100-sxm:64", "--tp", "2", "--mbs", "1", "--seq-len", "4096",
       "--global-batch", "256", "--tokens", "1T", "--per", "run"]  # fmt: skip
YEAR_S = 365.25 * 86400


def figure(key, unit, value, low=None, high=None):
    ends = "" if low is None else f"low = {low}\nhigh = {high}\n"
    return (
        f'["{key}"]\nvalue = {value}\n{ends}unit = "{unit}"\ncurrency = "USD"\n'
        'source = "own contract"\nas_of = "2026-10"\n'
    )


def bill(tmp_path, text, *flags):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    code, out, err = run([*JOB, "--prices", str(path), *flags, "--json"])
    assert code == 0, err
    return json.loads(out)


def test_staff_range_moves_the_run_by_its_years(tmp_path):
    answer = bill(tmp_path, figure("staff.ops", "USD/year", 4e5, 3e5, 6e5))
    invoice, span = answer["invoices"][-1], answer["span"]
    years = invoice["wall_s"] / YEAR_S
    staff = next(f for f in span["figures"] if f["key"] == "staff.ops")
    assert staff["usd_at_high"] - span["usd"] == pytest.approx(2e5 * years)
    assert span["usd"] - staff["usd_at_low"] == pytest.approx(1e5 * years)
    assert span["usd"] == invoice["usd"]


@pytest.mark.parametrize(
    ("key", "unit", "ends"),
    [("facility.retrofit.site", "USD/W", (2.0, 6.0)), ("staff.ops", "USD/year", (3e5, 6e5))],
)
def test_an_end_is_the_bill_with_the_figure_set_there(tmp_path, key, unit, ends):
    middle = bill(tmp_path, figure(key, unit, ends[0] * 1.2, *ends), "--offer", "owned")
    found = next(f for f in middle["span"]["figures"] if f["key"] == key)
    for value, usd in zip(ends, (found["usd_at_low"], found["usd_at_high"]), strict=True):
        at = bill(tmp_path, figure(key, unit, value), "--offer", "owned")
        assert at["invoices"][-1]["usd"] == pytest.approx(usd, rel=1e-12)


def test_all_together_holds_each_alone(tmp_path):
    both = figure("staff.ops", "USD/year", 4e5, 3e5, 6e5)
    span = bill(tmp_path, both + figure("facility.retrofit.site", "USD/W", 3.0, 2.0, 6.0),
                "--offer", "owned")["span"]  # fmt: skip
    ends = [(f["usd_at_low"], f["usd_at_high"]) for f in span["figures"]]
    assert span["usd_low"] <= min(min(e) for e in ends)
    assert span["usd_high"] >= max(max(e) for e in ends)
    widths = [abs(a - b) for a, b in ends]
    assert widths == sorted(widths, reverse=True) and len(ends) > 5
    # A longer life of a server costs less: ends are combined by what they do, not by their size.
    life = next(f for f in span["figures"] if f["key"] == "depreciation.server.life")
    assert life["usd_at_high"] < span["usd"] < life["usd_at_low"]


def test_a_bill_without_ranges_has_no_span(tmp_path):
    flat = bill(tmp_path, figure("device_hour.h100-sxm.on-demand", "USD/device-hour", 2.0))
    assert flat["span"] is None or all(
        f["key"] != "device_hour.h100-sxm.on-demand" for f in flat["span"]["figures"]
    )


def test_rented_hour_moves_with_its_own_range(tmp_path):
    """Device-hours times the price at each end, by hand."""
    text = figure("device_hour.h100-sxm.on-demand", "USD/device-hour", 2.5, 2.0, 4.0)
    answer = bill(tmp_path, text, "--offer", "on-demand")
    hours = answer["invoices"][-1]["device_s"] / 3600
    found = answer["span"]["figures"][0]
    assert found["key"] == "device_hour.h100-sxm.on-demand"
    assert answer["span"]["usd"] - found["usd_at_low"] == pytest.approx(0.5 * hours)
    assert found["usd_at_high"] - answer["span"]["usd"] == pytest.approx(1.5 * hours)
