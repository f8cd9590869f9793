"""The price book: complete figures, overrides, age, and one line for every wrong figure."""

import re
import tomllib
from datetime import date
from importlib import resources
from pathlib import Path

import pytest

from gangsaw.errors import InputError
from gangsaw.read.clusters import list_nodes, load_cluster
from gangsaw.read.prices import device_hour_key, load_prices, shipped_prices
from gangsaw.spec.price import UNITS, Figure, date_span

TODAY = date(2026, 11, 30)


def test_every_shipped_figure_is_complete():
    book = shipped_prices()
    assert len(book.figures) > 100
    for key, figure in book.figures.items():
        assert figure.source and figure.unit in UNITS, key
        assert (figure.currency == "USD") == figure.unit.startswith("USD"), key
        assert not figure.is_future(TODAY), key
        low, high = figure.span
        assert low <= figure.value <= high, key


def test_shipped_file_says_each_field_once_and_in_plain_toml():
    text = resources.files("gangsaw.catalog").joinpath("prices.toml").read_text()
    table = tomllib.loads(text)
    h100 = table["device_hour"]["h100-sxm"]["on-demand"]
    assert h100["value"] == 2.95 and h100["as_of"] == "2026-05-20"
    assert text.count("value = ") == len(shipped_prices().figures)


def test_no_price_in_code():
    # Figures of the book that would be recognised as a price must not be typed into a formula.
    root = Path(__file__).parents[2] / "src" / "gangsaw"
    prices = {"2.95", "2.35", "0.0862", "0.078", "12.29", "6.88", "194.95", "0.023", "0.09", "1.54"}
    for room in ("bill", "spec", "read"):
        for path in (root / room).glob("*.py"):
            code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
            found = set(re.findall(r"(?<![\w.\"$-])\d+\.\d+", code)) & prices
            assert not found, f"{path.name}: {found}"


def _write(tmp_path, body):
    path = tmp_path / "mine.toml"
    path.write_text(body)
    return path


GOOD = """
[electricity.us.industrial]
value = 0.05
unit = "USD/kWh"
currency = "USD"
source = "contract 17"
as_of = "2026-10"

[device_hour.h100-sxm.contract]
value = 1.99
unit = "USD/device-hour"
currency = "USD"
source = "contract 18"
as_of = "2026-11-01"
"""


def test_overrides_replace_and_add(tmp_path):
    book = load_prices(_write(tmp_path, GOOD), TODAY)
    assert book.value("electricity.us.industrial", "USD/kWh") == 0.05
    assert device_hour_key(book, "h100-sxm", "contract") == "device_hour.h100-sxm.contract"
    assert book.mine == {"electricity.us.industrial", "device_hour.h100-sxm.contract"}
    assert len(book.figures) == len(shipped_prices().figures) + 1


def test_age_is_marked_by_the_last_day_it_can_mean():
    figure = Figure(value=1, unit="frac", source="x", as_of="2025")
    assert not figure.is_stale(date(2026, 12, 31))
    assert figure.is_stale(date(2027, 1, 1))
    assert shipped_prices().get("carbon.us.mean", "kg/kWh").is_stale(TODAY)
    assert "device_hour.h100-sxm.on-demand" not in shipped_prices().stale(TODAY)
    assert date_span("2024-02") == (date(2024, 2, 1), date(2024, 2, 29))


def test_scaled_moves_the_range_too():
    book = shipped_prices().scaled("electricity.us.industrial", 2.0)
    figure = book.get("electricity.us.industrial", "USD/kWh")
    assert figure.value == pytest.approx(2 * 0.0862)
    assert shipped_prices().value("electricity.us.industrial", "USD/kWh") == 0.0862


def _edit(old, new):
    assert old in GOOD
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_edit('currency = "USD"', 'currency = "EUR"'), ["EUR", "USD/kWh", "convert"]),
        (_edit('currency = "USD"\n', ""), ["currency=missing"]),
        (_edit("value = 0.05", "value = -0.05"), ["-0.05", "greater than or equal to 0"]),
        (_edit("value = 0.05", "value = nan"), ["nan"]),
        (_edit("value = 0.05", "value = inf"), ["inf"]),
        (_edit("value = 0.05\n", ""), ["value", "required"]),
        (_edit('source = "contract 17"\n', ""), ["source", "required"]),
        (_edit('source = "contract 17"', 'source = " "'), ["source is empty"]),
        (_edit('as_of = "2026-10"\n', ""), ["as_of", "required"]),
        (_edit('"2026-10"', '"2027-01"'), ["2027-01", "after today", "2026-11-30"]),
        (_edit('"2026-10"', '"October"'), ["October", "YYYY-MM"]),
        (_edit('"2026-10"', '"2026-13"'), ["2026-13", "calendar"]),
        (_edit('unit = "USD/kWh"', 'unit = "USD/KWh"'), ["USD/KWh", "did you mean 'USD/kWh'"]),
        (_edit('unit = "USD/kWh"', 'unit = "USD/kW-month"'), ["this figure is in USD/kWh"]),
        (_edit("electricity.us.industrial", "electrcity.us.industrial"), ["electrcity", "Near"]),
        (_edit('source = "contract 17"', 'sauce = "contract 17"'), ["unknown keys sauce"]),
        (_edit("value = 0.05", "value = 0.05\nlow = 0.06"), ["outside low=0.06"]),
        (_edit("value = 0.05", 'value = "cheap"'), ["cheap"]),
        (_edit("value = 0.05", "value = 1e30"), ["1e+30", "at most 1e+12 USD/kWh"]),
        ("value = 3\n", ["outside a table"]),
        ("", ["no figure"]),
        ("[a\n", ["not valid TOML"]),
    ],
)
def test_wrong_figures_are_one_line(tmp_path, body, words):
    with pytest.raises(InputError) as error:
        load_prices(_write(tmp_path, body), TODAY)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_missing_figures_name_what_there_is():
    book = shipped_prices()
    with pytest.raises(InputError, match=r"electricity\.mars.*electricity\.us\.industrial"):
        book.get("electricity.mars", "USD/kWh")
    with pytest.raises(InputError, match=r"is in USD/kWh; USD/GB is needed"):
        book.get("electricity.us.industrial", "USD/GB")
    with pytest.raises(InputError, match=r"no 'weekly' price for 'h100-sxm'.*on-demand"):
        device_hour_key(book, "h100-sxm", "weekly")
    with pytest.raises(InputError, match=r"no price for device 'abacus'.*h100-sxm"):
        device_hour_key(book, "abacus")


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_prices(tmp_path / "nothing.toml", TODAY)


def test_nodes_of_the_catalog_cost_what_the_book_says():
    book = shipped_prices()
    compared = 0
    for node in list_nodes():
        cluster = load_cluster(f"{node}:8064")
        key = f"device_hour.{node}.on-demand"
        if book.has(key):
            compared += 1
            assert cluster.usd_per_device_hour == book.value(key, "USD/device-hour"), node
        if book.has(f"power.node.{node}"):
            assert cluster.host.node_power_w == book.value(f"power.node.{node}", "W"), node
    assert compared >= 8
