import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from report_fixtures import estimate_of, plan_list, plans
from report_sweeps import bandwidth, microbatches, sweeps
from rich.console import Console

from gangsaw.report import charts, curves, data
from gangsaw.report.html import report_html, write_report
from gangsaw.report.picture import picture_svg, sentence, size_of, standalone, write_picture
from gangsaw.report.series import ReportSweeps
from gangsaw.report.text import estimate_text, plan_list_text

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balance(HTMLParser):
    """Collects elements that were closed in the wrong order, all ids and all addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.ids, self.addresses = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[k] for k in ("href", "src", "srcset", "action") if k in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def page(result=None, found=None):
    result = result or plan_list()
    first = result.plans[0] if result.plans else plans()[0]
    return report_html(result, estimate_of(first), sweeps() if found is None else found)


def parsed(html):
    balance = Balance()
    balance.feed(html)
    return balance


def test_page_is_balanced_and_its_ids_are_unique():
    balance = parsed(page())
    assert balance.wrong == []
    assert balance.open == []
    assert len(balance.ids) == len(set(balance.ids))


def test_page_asks_nothing_of_any_network():
    html = page()
    assert all(a.startswith("#") for a in parsed(html).addresses)
    assert "default-src 'none'" in html
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\s\"'<)]+", html)) <= allowed
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_every_pattern_that_is_used_is_defined():
    html = page()
    used = set(re.findall(r"url\(#([\w-]+)\)", html))
    assert used
    assert used <= set(parsed(html).ids)


def test_every_figure_has_a_table_behind_it():
    for part in page().split("<figure")[1:]:
        figure = part.split("</figure>")[0]
        assert 'class="data"' in figure or " data" in figure
        assert "data-name=" in figure


def test_page_shows_the_sentence_the_picture_and_each_plan():
    result = plan_list()
    html = page(result)
    for number in range(2, len(result.plans) + 1):
        assert f"Plan {number}: memory and invoice" in html
    for said in ("8.6 s (8.1-9.2)", "idle device-h", "capacity 79.1 GiB", "From peak", "30.0 GB/s"):
        assert said in html


def test_pareto_front_is_listed_where_there_is_one():
    assert "Pareto front of step time, memory headroom and devices: 3 plans" in page()
    assert "Pareto front" not in page(plan_list(pareto=()))


def test_page_escapes_what_names_hold():
    result = plan_list(model="<script>alert(1)</script>&")
    html = page(result)
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_states_without_sweeps_plans_or_collectives_are_designed():
    html = page(found=ReportSweeps())
    assert "nothing to sweep" in html
    assert "one fast domain" in html
    nothing = plan_list(plans=(), nearest=({"plan": "TP 8 PP 16", "lacks": "12 GiB"},))
    html = page(nothing)
    assert "No plan fits" in html
    assert "TP 8 PP 16; 12 GiB" in html
    lonely = estimate_of(plans()[0]).model_copy(update={"collectives": ()})
    assert "no collectives" in report_html(plan_list(), lonely, ReportSweeps())


def test_report_is_written(tmp_path):
    path = tmp_path / "r.html"
    result = plan_list()
    write_report(path, result, estimate_of(result.plans[0]), sweeps())
    assert path.read_text("utf-8").startswith("<!doctype html>")


def drawings():
    for i, result in enumerate(plans()):
        for width in (charts.WIDE, charts.NARROW):
            yield f"memory-{i}-{width:.0f}", charts.memory_svg(result.memory, width, "m"), width
    result = estimate_of(plans()[0])
    for width in (charts.WIDE, charts.NARROW):
        yield f"fall-{width:.0f}", charts.waterfall_svg(data.waterfall(result), width, "w"), width
        yield f"m-{width:.0f}", curves.microbatch_svg(microbatches(), width), width
        yield f"bw-{width:.0f}", curves.bandwidth_svg(bandwidth(), width), width
    rows = data.invoice_rows(result.bill)
    yield "invoice", charts.invoice_svg(rows, charts.WIDE, "i"), charts.WIDE


DRAWINGS = {name: (svg, width) for name, svg, width in drawings()}


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_drawing_is_xml_with_a_label_and_keeps_within_its_box(name):
    text, width = DRAWINGS[name]
    root = ElementTree.fromstring(text)
    assert root.get("aria-label")
    box = [float(v) for v in root.get("viewBox").split()]
    assert box[2] == width
    for element in root.iter():
        if element.tag.endswith("rect") and element.get("x"):
            x, w = float(element.get("x")), float(element.get("width"))
            y, h = float(element.get("y")), float(element.get("height"))
            assert -0.1 <= x <= x + w <= width + 0.1
            assert -0.1 <= y <= y + h <= box[3] + 0.1
        if element.tag.endswith("text"):
            assert 0 <= float(element.get("y")) <= box[3]


def test_memory_bars_are_as_long_as_their_bytes():
    memory = plans()[0].memory
    root = ElementTree.fromstring(charts.memory_svg(memory, charts.WIDE, "m"))
    lengths = {}
    for element in root.iter():
        title = element.find("{http://www.w3.org/2000/svg}title")
        if title is not None and title.text.startswith("stage "):
            stage = int(title.text.split(":")[0].removeprefix("stage "))
            lengths[stage] = lengths.get(stage, 0.0) + float(element.get("width")) + 0.6
    scale = lengths[0] / memory.per_stage[0].peak_device_bytes
    for stage in memory.per_stage:
        assert lengths[stage.stage] == pytest.approx(stage.peak_device_bytes * scale, abs=3.0)


def lines_of(render, width, colour=False):
    console = Console(
        width=width, no_color=not colour, force_terminal=colour, highlight=False, markup=False,
        emoji=False,
    )  # fmt: skip
    with console.capture() as capture:
        render(console)
    return capture.get().split("\n")


RENDERS = {
    "plans": lambda c: plan_list_text(plan_list(), c),
    "none": lambda c: plan_list_text(plan_list(plans=(), nearest=({"lacks": "12 GiB"},)), c),
    "estimate": lambda c: estimate_text(estimate_of(plans()[0]), c),
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", sorted(RENDERS))
def test_text_fits_its_columns_and_is_ascii_without_colour(name, width):
    lines = lines_of(RENDERS[name], width)
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_every_plan_shows_all_degrees_interval_memory_bill_and_why(width):
    text = " ".join("\n".join(lines_of(RENDERS["plans"], width)).split())
    for result in plans():
        plan = result.plan
        assert f"TP {plan.tp} CP {plan.cp} PP {plan.pp}x{plan.vpp} DP {plan.dp}" in text
        assert f"EP {plan.ep} ETP {plan.etp}" in text
        assert result.why in text
    assert "8.6 s (8.1-9.2)" in text
    assert "fastest, cheapest" in text


def test_bars_stand_side_by_side_and_are_coloured_on_a_terminal():
    plain = lines_of(RENDERS["plans"], 100)
    assert any(re.search(r"PP.*GG.*\.\.+ C+b+", line) for line in plain)
    coloured = "\n".join(lines_of(RENDERS["plans"], 100, colour=True))
    assert "█" in coloured
    assert "▒" in coloured
    assert "\x1b[" in coloured


def test_picture_holds_sentence_memory_invoice_and_pipeline():
    chosen = estimate_of(plans()[0])
    pipeline = charts.invoice_svg(data.invoice_rows(chosen.bill), 560.0, "stand-in")
    root = ElementTree.fromstring(standalone(picture_svg(chosen, pipeline)))
    said = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    for part in (*sentence(chosen).split(), "capacity", "idle", "Pipeline"):
        assert part in said
    assert "var(" not in ElementTree.tostring(root, encoding="unicode")
    # Longer by the drawing, scaled to the page's width, and a heading.
    bare = size_of(picture_svg(chosen))[1]
    scale = (1180.0 - 48.0) / 560.0
    assert float(root.get("height")) == pytest.approx(
        bare + size_of(pipeline)[1] * scale + 42, abs=0.1
    )


def test_picture_is_written(tmp_path):
    write_picture(tmp_path / "p.svg", estimate_of(plans()[0]))
    assert ElementTree.fromstring((tmp_path / "p.svg").read_text("utf-8")).tag.endswith("svg")
