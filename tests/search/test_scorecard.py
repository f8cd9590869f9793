"""The scorecard: each family keeps to itself, each number is found again by another path."""

import json
import math

import pytest

from gangsaw.bill.power import site_power
from gangsaw.cli.main import run
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.search.parameters import Case, Money, parameter
from gangsaw.search.scorecard import (
    ARTICLE,
    FAMILIES,
    complexity,
    needed_bandwidth,
    plans_of,
    scorecard,
)
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
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


def plan_of(family):
    fields = PLANS[family].model_dump()
    return Plan.model_validate({k: v for k, v in fields.items() if k in Plan.model_fields})


def test_each_family_uses_its_own_axis_only():
    own = {
        "pipeline": lambda p: p.pp > 1 and p.tp == 1 and p.zero <= 1,
        "tensor": lambda p: p.tp > 1 and p.pp == 1 and p.zero <= 1,
        "sharded": lambda p: p.tp == p.pp == 1 and p.zero == 3,
        "hybrid": lambda p: True,
    }
    for family in FAMILIES:
        plans = list(plans_of(JOB, family))
        assert plans and all(own[family](p) for p in plans)
        assert all(p.devices == 32 for p in plans)
        assert all(p.dp * p.mbs * p.num_microbatches == 128 for p in plans)


@pytest.mark.parametrize("family", FAMILIES)
def test_best_plan_is_the_fastest_that_fits(family):
    best = next(c for c in CARD.columns if c.family == family)
    chosen = estimate(JOB, plan_of(family))
    assert chosen.memory.peak_bytes <= chosen.memory.capacity_bytes
    assert best.step_time_s == pytest.approx(chosen.step_time_s)
    for plan in list(plans_of(JOB, family))[::7]:
        try:
            other = estimate(JOB, plan)
        except ValueError:
            continue
        except Exception as error:  # a plan that this stack refuses
            assert type(error).__name__ == "InputError"
            continue
        if other.memory.peak_bytes <= other.memory.capacity_bytes:
            assert other.step_time_s >= chosen.step_time_s * (1 - 1e-9)


def test_hybrid_is_never_slower_than_a_pure_plan():
    times = {c.family: c.step_time_s for c in CARD.columns}
    assert times["hybrid"] <= min(times.values()) * (1 + 1e-12)


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
    replica = PLANS[family].tp * PLANS[family].pp
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
