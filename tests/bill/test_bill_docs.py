"""docs/bill.md: its files are read by the program, and every key stands in it."""

import re
import tomllib
from datetime import date
from pathlib import Path

from gangsaw.bill.finance import Ownership
from gangsaw.read.prices import load_prices
from gangsaw.search.site import Facility
from gangsaw.spec.invoice import RunTerms
from gangsaw.spec.result import IDLE_CAUSES

TEXT = (Path(__file__).parents[2] / "docs" / "bill.md").read_text()
BLOCKS = dict(re.findall(r"```toml (\w+)\n(.*?)```", TEXT, flags=re.S))


def test_prices_of_the_document_load(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(BLOCKS["prices"])
    book = load_prices(path, date(2026, 11, 30))
    assert book.mine == {
        "device_hour.h100-sxm.contract",
        "electricity.us.industrial",
        "staff.cluster.year",
    }


def test_run_and_own_files_hold_every_key():
    pairs = (("run", RunTerms), ("own", Ownership), ("facility", Facility))
    for name, document in pairs:
        table = tomllib.loads(BLOCKS[name])
        document.model_validate(table)
        assert set(table) == set(document.model_fields), name


def test_idle_causes_are_named():
    sentence = re.search(r"Idle causes are (.*?)\.", TEXT, flags=re.S).group(1)
    plain = [c for c in IDLE_CAUSES if not c.endswith("_comm")]
    assert all(c in sentence for c in plain) and "exposed communication" in sentence
