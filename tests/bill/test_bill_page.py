"""The printed invoice: 100 columns, every amount there, well-formed HTML, exact CSV."""

import csv
import io
import math
from datetime import date
from html.parser import HTMLParser

from bill_fixtures import CAUSE_S, estimate, memory, use

from gangsaw.bill.compare import compare
from gangsaw.bill.rates import rented
from gangsaw.bill.run import Pricing, run_invoice, step_invoice
from gangsaw.bill.use import use_of_plan
from gangsaw.read.prices import shipped_prices
from gangsaw.report.invoice import (
    WORDS,
    comparison_text,
    invoice_csv,
    invoice_html,
    invoice_rows,
    invoice_text,
    memory_text,
)
from gangsaw.spec.invoice import RunTerms
from gangsaw.spec.result import CAUSES, IDLE_CAUSES

BOOK = shipped_prices()
PRICING = Pricing(rented(BOOK, "h800-sxm"), BOOK, date(2026, 11, 30))
TERMS = RunTerms(
    tokens=1e12, start_s=600, device_mtbf_h=5e4, restart_s=750, checkpoint_block_s=5,
    checkpoint_bytes=5e12, checkpoints_kept=3,
)  # fmt: skip
RUN = run_invoice(use_of_plan(estimate(), 2**22), TERMS, PRICING)


def test_text_fits_and_is_plain_ascii_without_color():
    text = invoice_text(RUN)
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= 100
    assert max(len(line) for line in invoice_text(RUN, color=True).splitlines()) <= 100
    for word in ("pipeline bubble", "idle", "work", "storage", "older than a year", "staff"):
        assert word in text
    lines = text.splitlines()
    assert lines[1].startswith("total $") and lines[2].startswith("idle  $")


def test_rows_hold_all_of_the_money_and_work_comes_first():
    rows = invoice_rows(RUN)
    assert math.isclose(sum(r.usd for r in rows), RUN.usd, rel_tol=1e-12)
    assert math.isclose(sum(r.device_h for r in rows), RUN.device_s / 3600, rel_tol=1e-12)
    kinds = [r.cause == "services" or r.idle for r in rows]
    assert kinds == sorted(kinds)
    assert {r.cause for r in rows if r.idle} <= set(IDLE_CAUSES)


def test_every_cause_has_words_of_its_own():
    assert set(CAUSES) <= set(WORDS)
    assert len({WORDS[c] for c in CAUSES}) == len(CAUSES)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.rows = [], 0

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.rows += tag == "tr"
        assert not any(name in ("src", "href") for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_balanced_escaped_and_requests_nothing():
    hostile = use(CAUSE_S).model_copy(update={"title": "<script>alert(1)</script>"})
    html = invoice_html(step_invoice(hostile, PRICING))
    assert "<script>" not in html
    parser = _Tags()
    parser.feed(html)
    assert parser.open == [] and parser.rows == len(CAUSE_S) + 1


def test_csv_has_a_row_a_line_and_full_precision():
    rows = list(csv.DictReader(io.StringIO(invoice_csv(RUN))))
    assert len(rows) == len(RUN.lines)
    assert sum(float(r["usd"]) for r in rows) == RUN.usd
    assert sum(float(r["device_s"]) for r in rows) == RUN.device_s


def test_comparison_names_the_direction_and_fits():
    more = run_invoice(use_of_plan(estimate({**CAUSE_S, "bubble": 2.0}), 2**22), TERMS, PRICING)
    text = comparison_text(compare(RUN, more))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "more than A" in text and "pipeline bubble" in text
    assert "less than A" in comparison_text(compare(more, RUN))


def test_memory_chart_stands_beside_the_bill():
    text = memory_text(memory())
    assert text.isascii() and max(len(x) for x in text.splitlines()) <= 100
    assert len(text.splitlines()) == 2 + 4 and "headroom 22.5 %" in text
    first, last = text.splitlines()[2], text.splitlines()[5]
    assert first.count("a") > last.count("a") and last.count("l") > first.count("l")
