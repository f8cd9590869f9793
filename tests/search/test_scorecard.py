"""The scorecard: each family keeps to itself, each number is found again by another path."""

import json
import math
import random

import pytest

from gangsaw.bill.power import site_power
from gangsaw.cli.main import run
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.read.stacks import load_stack
from gangsaw.report.scorecard import scorecard_html, scorecard_text, verdict
from gangsaw.search.estimate import estimate
from gangsaw.search.families import FAMILIES, survey
from gangsaw.search.parameters import Case, Money, parameter
from gangsaw.search.scorecard import (
    ARTICLE,
    Cell,
    Scorecard,
    complexity,
    needed_bandwidth,
    scorecard,
)
from gangsaw.search.search import search
from gangsaw.search.space import Limits
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.price import PriceBook
from gangsaw.spec.recipe import Recipe

BOOK = shipped_prices()
JOB = Job(
    model=load_model("llama-3.1-8b"),
    recipe=Recipe(seq_len=8192, global_batch=128),
    cluster=load_cluster("h100-sxm:32"),
    stack=load_stack("megatron-core-te"),
)
MONEY = Money(2.95, device_mtbf_h=50_000, restart_s=750, checkpoint_block_s=0.6)
CARD = scorecard(JOB, BOOK, MONEY, site_power(BOOK, "h100-sxm"))
PLANS = {c.family: c.plan for c in CARD.columns}


def fields_of(document):
    """A shown plan as the fields of a Plan."""
    fields = document.model_dump()
    recompute, _, layers = fields["recompute"].partition(":")
    return {**fields, "recompute": recompute, "recompute_layers": int(layers or 0)}


def plan_of(family):
    return Plan.model_validate(fields_of(PLANS[family]))


def member(family, p):
    """Whether a plan is of a kind, said without the program's own rule."""
    spread = p.zero >= 2 and p.dp * p.cp > 1
    cuts = [p.tp > 1, p.cp > 1, p.pp > 1, spread]
    return {
        "pipeline": cuts == [False, False, True, False],
        "tensor": cuts == [True, False, False, False],
        "sharded": cuts[:3] == [False] * 3 and p.dp > 1 and p.zero >= 1,
        "hybrid": sum(cuts) >= 2,
    }[family]


def drawn_plans(count=400):
    """Plans of all kinds, drawn from the plain space of degrees."""
    rng = random.Random(5)
    while count:
        tp, cp, pp = (rng.choice((1, 1, 2, 4, 8)) for _ in range(3))
        if 32 % (tp * cp * pp):
            continue
        dp = 32 // (tp * cp * pp)
        mbs = rng.choice((1, 2))
        if 128 % (dp * mbs):
            continue
        vpp = rng.choice((1, 2)) if pp > 1 else 1
        count -= 1
        yield Plan(
            tp=tp, cp=cp, pp=pp, dp=dp, mbs=mbs, num_microbatches=128 // dp // mbs, vpp=vpp,
            schedule="interleaved" if vpp > 1 else "1f1b", zero=rng.choice((0, 1)),
            recompute=rng.choice(("none", "selective", "full")), sequence_parallel=tp > 1,
        )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_best_plan_fits_and_no_drawn_one_of_its_kind_is_faster(family):
    best = next(c for c in CARD.columns if c.family == family)
    chosen = estimate(JOB, plan_of(family))
    assert member(family, plan_of(family))
    assert chosen.memory.fits == "yes"
    assert best.step_time_s == pytest.approx(chosen.step_time_s)
    seen = 0
    for plan in drawn_plans():
        if not member(family, plan):
            continue
        try:
            other = estimate(JOB, plan)
        except InputError:
            continue
        if other.memory.fits == "yes":
            seen += 1
            # Of plans within half a per cent the simplest is shown.
            assert other.step_time_s * 1.005 >= chosen.step_time_s
    assert seen > 0


def test_the_fastest_of_the_four_is_that_of_the_search():
    found = search(JOB, Limits())
    first = found.plans[0]
    kinds = [f for f in FAMILIES if member(f, Plan.model_validate(fields_of(first.plan)))]
    note = next(n for n in CARD.notes if n.startswith("fastest of the whole search"))
    assert (kinds[0] if kinds else "none of the four kinds") in note
    for family in kinds:
        own = next(c for c in CARD.columns if c.family == family)
        assert own.plan == first.plan
    assert all(c.step_time_s >= first.step_time_s * (1 - 1e-9) for c in CARD.columns)


def test_a_kind_far_behind_is_searched_by_itself():
    big = JOB.model_copy(
        update={
            "model": load_model("llama-3.1-70b"),
            "cluster": load_cluster("h100-sxm:64"),
            "recipe": Recipe(seq_len=8192, global_batch=256),
        }
    )
    found = survey(big, 1)
    fastest_s = found.listed[0].cost.step
    slow = [f for f in FAMILIES if (e := found.best[f].found) and e.cost.step > 1.2 * fastest_s]
    assert "tensor" in slow
    alone = search(big, Limits(fixed={"tp": 8, "cp": 1, "pp": 1, "zero": 1}))
    assert found.best["tensor"].found.cost.step <= alone.plans[0].step_time_s * (1 + 1e-9)


def test_one_node_is_scored_by_the_links_inside():
    one = JOB.model_copy(update={"cluster": load_cluster("h100-sxm:8")})
    card = scorecard(one, BOOK, MONEY, site_power(BOOK, "h100-sxm"))
    assert {c.family for c in card.columns if c.plan} >= {"pipeline", "tensor"}
    cells = card.rows["network bandwidth"]
    assert all("inside the node" in c.derivation for c in cells.values())
    rate = 128 * 8192 / card.columns[0].step_time_s
    assert card.rows["capital"]["pipeline"].value == pytest.approx(8 * 31904.63 / rate * 1e6)
    single = JOB.model_copy(update={"cluster": load_cluster("h100-sxm:1")})
    with pytest.raises(InputError, match="Legal: two devices"):
        scorecard(single, BOOK, MONEY, site_power(BOOK, "h100-sxm"))


def test_a_missing_price_is_no_number():
    book = PriceBook(
        figures={k: v for k, v in BOOK.figures.items() if k != "device_price.h100-sxm.server"}
    )
    card = scorecard(JOB, book, MONEY, site_power(BOOK, "h100-sxm"))
    for cell in card.rows["capital"].values():
        assert cell.value is None and cell.grade is None
        assert "device_price.h100-sxm.server" in cell.derivation
    assert "no price" in scorecard_text(card)
    assert "no price" in scorecard_html(card)


@pytest.mark.parametrize("family", FAMILIES)
def test_cells_by_plain_arithmetic(family):
    result = estimate(JOB, plan_of(family))
    rows = {name: cells[family] for name, cells in CARD.rows.items()}
    rate = 128 * 8192 / result.step_time_s
    assert rows["effective throughput"].value == pytest.approx(rate / 32)
    assert rows["effective throughput"].value == pytest.approx(result.tokens_per_s_per_device)
    kwh = 4 * 10.2 * 0.82 * 1.1 * 1.3 * result.step_time_s / 3600 / (128 * 8192 / 1e6)
    assert rows["energy and PUE"].value == pytest.approx(kwh)
    need = rows["network bandwidth"].value
    fabric = 31904.63 * 0.25 * need / 50e9
    assert rows["capital"].value == pytest.approx(32 * (31904.63 + fabric) / rate * 1e6, rel=1e-6)
    mtbf_s = 50_000 * 3600 / 32
    half = math.sqrt(2 * 0.6 * mtbf_s) / 2
    p = plan_of(family)
    replica = p.tp * p.pp * (p.dp * p.cp if p.zero >= 3 else p.cp)
    by_hand = (750 + half) / 3600 * 2.95 * replica
    assert rows["failure-domain cost"].value == pytest.approx(by_hand, rel=0.01)
    assert all(c.derivation for c in rows.values())


def test_needed_bandwidth_is_where_the_step_is_a_tenth_longer():
    case = Case("", JOB, plan_of("hybrid"), MONEY)
    need = needed_bandwidth(case)
    over = parameter("inter-node-bandwidth")
    free = estimate(over.at(case, 50e12).job, case.plan).step_time_s
    if need == 0.0:
        slow = estimate(over.at(case, 50e6).job, case.plan).step_time_s
        assert slow <= 1.1 * free
    else:
        at = estimate(over.at(case, need).job, case.plan).step_time_s
        assert at == pytest.approx(1.1 * free, rel=1e-3)


def test_grades_follow_the_numbers_and_differences_are_explained():
    order = ["low", "medium", "high", "very high"]
    for name, cells in CARD.rows.items():
        ranked = sorted(cells.values(), key=lambda c: c.value)
        grades = [order.index(c.grade) for c in ranked]
        assert grades == sorted(grades), name
        for family, cell in cells.items():
            assert cell.article == ARTICLE.get(name, {}).get(family, "")
            if cell.article and cell.grade not in cell.article.split("-"):
                assert cell.why


def test_without_power_of_a_node_energy_has_no_number():
    card = scorecard(JOB, BOOK, MONEY, None)
    cells = card.rows["energy and PUE"].values()
    assert all(c.value is None and "no rated power" in c.derivation for c in cells)
    assert scorecard_html(card)


def test_parts_are_counted():
    assert complexity(Plan(dp=8, zero=3))[0] == 2  # one group, one cut of the checkpoint
    assert complexity(Plan(dp=8, zero=0))[0] == 1
    # tp, sp, pp, dp; 1F1B; tensor, pipeline and optimizer shards.
    assert complexity(Plan(tp=8, pp=4, dp=4, zero=1))[0] == 4 + 2 + 3


def test_family_without_a_fitting_plan_says_what_is_missing():
    big = JOB.model_copy(update={"model": load_model("llama-3.1-405b")})
    card = scorecard(big, BOOK, MONEY, site_power(BOOK, "h100-sxm"))
    for column in card.columns:
        assert column.plan is None
        assert "GiB" in column.note or "legal" in column.note
    assert card.rows == {}


def test_command_prints_document_text_and_page(tmp_path):
    words = ["scorecard", "llama-3.1-8b", "h100-sxm:32", "--seq-len", "8192", "--global-batch",
             "128"]  # fmt: skip
    code, out, err = run([*words, "--json"])
    assert code == 0, err
    assert set(json.loads(out)["rows"]) == set(CARD.rows)
    page = tmp_path / "card.html"
    code, out, err = run([*words, "--html", str(page)])
    assert code == 0, err
    assert out.isascii() and max(len(x) for x in out.splitlines()) <= 100
    html = page.read_text()
    assert "src=" not in html and "href=" not in html and html.count("<td>") == 4 * len(CARD.rows)


def test_where_nothing_fits_the_card_is_shown_and_the_exit_says_so():
    words = ["scorecard", "llama-3.1-405b", "h100-sxm:16", "--seq-len", "8192",
             "--global-batch", "128"]  # fmt: skip
    code, out, err = run([*words, "--json"])
    assert code == 3 and json.loads(out)["rows"] == {}
    code, out, err = run(words)
    assert code == 3 and out.count("the least needs") == 4 and "no plan of any kind fits" in err


def test_the_verdict_names_the_best_of_each_row():
    def cell(value):
        return Cell(value=value, unit="parts", derivation="made", grade="low")

    rows = {
        "effective throughput": {"pipeline": cell(2.0), "hybrid": cell(3.0)},
        "capital": {"pipeline": cell(5.0), "hybrid": cell(4.0)},
        "failure-domain cost": {"pipeline": cell(1.0), "tensor": cell(1.0), "hybrid": cell(2.0)},
        "energy and PUE": {"pipeline": cell(None), "hybrid": cell(1.0)},
    }
    said = verdict(Scorecard(model="m", cluster="c", columns=(), rows=rows))
    assert said == (
        "Best: hybrid in effective throughput, capital;"
        " pure pipeline and pure tensor in failure-domain cost."
    )
    alone = {"capital": {"hybrid": cell(4.0)}}
    assert "No two" in verdict(Scorecard(model="m", cluster="c", columns=(), rows=alone))
