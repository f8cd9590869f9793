"""Owning against renting, by a second path: month by month in a spreadsheet's way."""

import math
import tomllib
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.bill.finance import (
    RETROFIT_KEY,
    Ownership,
    Renting,
    break_even_years,
    own_or_rent,
    owned_rates,
    ownership_of_book,
    yearly_charge,
)
from gangsaw.errors import InputError
from gangsaw.read.prices import shipped_prices

BOOK = shipped_prices()


def test_annuity_pays_back_the_price_at_its_discount():
    for rate in (0.0, 0.05, 0.12):
        pay = yearly_charge(1000.0, 200.0, 5, rate)
        present = sum(pay / (1 + rate) ** y for y in range(1, 6)) + 200 / (1 + rate) ** 5
        assert present == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("rent", "residual", "years"),
    [(2.95, 0.0, 2.2), (2.35, 0.0, 2.9), (6.88, 0.0, 0.9), (2.95, 0.3, 1.6)],
)
def test_break_even_of_a_50_000_dollar_device(rent, residual, years):
    assert break_even_years(50_000, rent, 0.40, residual) == pytest.approx(years, abs=0.06)


def test_break_even_is_never_where_rent_is_below_running():
    assert break_even_years(50_000, 0.40, 0.40) == math.inf
    assert break_even_years(50_000, 2.0, 0.40, utilisation_frac=0.2) == math.inf


OWN = Ownership(
    devices_usd=30_000, fabric_usd=6_000, building_usd=9_000, residual_frac=0.3, wall_w=1300,
    idle_wall_w=300, usd_per_kwh=0.08, maintenance_frac=0.03, staff_usd_per_year=500,
)  # fmt: skip


def _by_hand(own, rent, months, use, resale):
    """Month by month, with nothing but a loop."""
    hours = 8766 / 12
    paid_own, paid_rent = own.devices_usd + own.fabric_usd + own.building_usd, 0.0
    rows = []
    for month in range(1, months + 1):
        kwh = hours * (use * own.wall_w + (1 - use) * own.idle_wall_w) / 1000
        paid_own += kwh * own.usd_per_kwh
        paid_own += own.maintenance_frac * (own.devices_usd + own.fabric_usd) / 12
        paid_own += own.staff_usd_per_year / 12
        paid_rent += rent.usd_per_hour * hours * (1 if rent.kind == "reserved" else use)
        sale = 0.0
        if resale:
            sale = (own.devices_usd + own.fabric_usd) * own.residual_frac ** (month / 36)
            sale += own.building_usd * (1 - month / 240)
        rows.append((paid_own - sale, paid_rent))
    return rows


@pytest.mark.parametrize("kind", ["on-demand", "reserved"])
@pytest.mark.parametrize("use", [0.4, 1.0])
def test_curve_equals_the_loop(kind, use):
    rent = Renting(usd_per_hour=2.35, kind=kind)
    answer = own_or_rent(OWN, rent, 60, [use])
    rows = _by_hand(OWN, rent, 60, use, resale=True)
    for point, (owned, rented) in zip(answer.curve[1:], rows, strict=True):
        assert point.owned_usd == pytest.approx(owned)
        assert point.rented_usd == pytest.approx(rented)
    assert answer.month_12 == answer.curve[12]
    cash = _by_hand(OWN, rent, 60, use, resale=False)
    first = next((i for i, (o, r) in enumerate(cash, 1) if o <= r), None)
    if first is None:
        assert answer.break_even_cash_month is None
    else:
        assert first - 1 <= answer.break_even_cash_month <= first


def test_what_each_side_must_believe_is_parity_when_put_in():
    rent = Renting(usd_per_hour=2.35)
    answer = own_or_rent(OWN, rent, 36, [0.8])
    at_rent = own_or_rent(OWN, Renting(usd_per_hour=answer.rent_at_parity_usd), 36, [0.8])
    assert at_rent.curve[-1].owned_usd == pytest.approx(at_rent.curve[-1].rented_usd)
    at_use = own_or_rent(OWN, rent, 36, [answer.utilisation_at_parity_frac])
    assert at_use.curve[-1].owned_usd == pytest.approx(at_use.curve[-1].rented_usd)
    dearer = OWN.model_copy(update={"devices_usd": answer.price_at_parity_usd})
    at_price = own_or_rent(dearer, rent, 36, [0.8])
    assert at_price.curve[-1].owned_usd == pytest.approx(at_price.curve[-1].rented_usd)


def test_profile_is_followed_month_by_month():
    rent = Renting(usd_per_hour=1.0)
    answer = own_or_rent(OWN, rent, 4, [0.0, 1.0, 0.5])
    steps = [
        b.rented_usd - a.rented_usd for a, b in zip(answer.curve, answer.curve[1:], strict=False)
    ]
    hours = 8766 / 12
    assert steps == pytest.approx([0.0, hours, 0.5 * hours, 0.5 * hours])


def test_spot_pays_for_lost_work():
    calm = Renting(usd_per_hour=1.25, kind="spot", preemptions_per_hour=0.05, restart_s=600,
                   checkpoint_block_s=10)  # fmt: skip
    wild = calm.model_copy(update={"preemptions_per_hour": 2.0})
    assert 1.25 < calm.usd_per_work_hour() < wild.usd_per_work_hour()
    assert wild.usd_per_work_hour() > 1.25 * 1.3


@given(st.floats(0.05, 1.0))
def test_owned_rates_recover_the_yearly_cost(use):
    own = OWN.model_copy(update={"utilisation_frac": use})
    rates = owned_rates(own)
    per_year = rates.usd_per_device_hour * use * 8766
    sale = 36_000 * 0.3 ** (5 / 3)
    capital = (36_000 - sale) / 5 + 9_000 / 20
    running = 8766 * (use * 1.3 + (1 - use) * 0.3) * 0.08 + 0.03 * 36_000 + 500
    assert per_year == pytest.approx(capital + running)
    kinds = {i.item: i.spending for i in rates.items}
    assert kinds == {
        "devices": "capital", "fabric": "capital", "building": "capital", "energy": "operating",
        "maintenance": "operating", "staff": "operating",
    }  # fmt: skip


def test_ownership_from_the_book_names_what_it_leaves_out():
    own = ownership_of_book(BOOK, "h100-sxm", 8)
    assert own.devices_usd == pytest.approx(31904.63)
    assert own.fabric_usd / (own.fabric_usd + own.devices_usd) == pytest.approx(0.2)
    assert own.building_usd == pytest.approx(10_200 / 8 * 1.1 * 13)
    assert own.wall_w == pytest.approx(10_200 / 8 * 0.82 * 1.1 * 1.3)
    assert {x.split()[0] for x in own.not_billed} == {"staff", "maintenance"}
    stated = ownership_of_book(BOOK, "h100-sxm", 8, staff_usd_per_year=1.0, maintenance_frac=0.1)
    assert stated.not_billed == () and stated.maintenance_frac == 0.1
    rates = owned_rates(own)
    # SemiAnalysis puts building and amortising an H100-hour at about 1.40 dollars.
    assert 0.9 < rates.usd_per_device_hour < 1.9
    with pytest.raises(InputError, match=r"device_price\.abacus\.server"):
        ownership_of_book(BOOK, "abacus", 8)


def test_retrofit_is_an_input_in_place_of_a_new_building():
    figure = BOOK.get("facility.new-build.ai", "USD/W").model_copy(
        update={"value": 4.0, "low": 3.0, "high": 6.0, "source": "quote"}
    )
    own = ownership_of_book(BOOK.override({RETROFIT_KEY: figure}), "h100-sxm", 8)
    assert own.building_usd == pytest.approx(10_200 / 8 * 1.1 * 4.0)
    assert RETROFIT_KEY in own.keys and "facility.new-build.ai" not in own.keys


def test_wrong_inputs():
    rent = Renting(usd_per_hour=2.0)
    with pytest.raises(InputError, match="between 1 and 600"):
        own_or_rent(OWN, rent, 0)
    with pytest.raises(InputError, match="between 0 and 1"):
        own_or_rent(OWN, rent, 12, [1.5])
    with pytest.raises(InputError, match="never used"):
        owned_rates(OWN.model_copy(update={"utilisation_frac": 0.0}))
    for bad in ({"usd_per_hour": -1}, {"usd_per_hour": math.nan}):
        with pytest.raises(ValueError):
            Renting(**bad)


def test_owned_hour_from_the_price_file_alone():
    """A spreadsheet's way: figures from the TOML text, formulas typed again."""
    text = resources.files("gangsaw.catalog").joinpath("prices.toml").read_text()
    table = tomllib.loads(text)

    def figure(*path):
        node = table
        for part in path:
            node = node[part]
        return node["value"]

    server = figure("device_price", "h100-sxm", "server")
    share = figure("network", "capital", "share")
    fabric = server / (1 - share) - server
    rated = figure("power", "node", "h100-sxm") / 8 * (1 + figure("power", "network", "share"))
    building = rated * figure("facility", "new-build", "ai")
    kw = rated * figure("power", "measured", "share") * figure("pue", "site", "new") / 1000
    life = figure("depreciation", "server", "life")
    kept = figure("residual", "server", "3y") ** (life / 3)
    hour = (server + fabric) * (1 - kept) / life / 8766
    hour += building / figure("depreciation", "building", "life") / 8766
    hour += kw * figure("electricity", "us", "industrial")
    assert owned_rates(ownership_of_book(BOOK, "h100-sxm", 8)).usd_per_device_hour == pytest.approx(
        hour
    )
