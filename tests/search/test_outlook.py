"""Tails and failures in the ranking: the laws against drawn steps, and what they do to the order."""

from dataclasses import replace

import numpy as np
import pytest
from test_tail_answer import FIGURES, QUIET, day, evaluated, job

from gangsaw.errors import InputError
from gangsaw.schedule import generate
from gangsaw.search.day_law import LAW_ERROR, extreme, extreme_sd, largest, step_law, waits
from gangsaw.search.estimate import evaluate, plan_result
from gangsaw.search.goodput import best_goodput
from gangsaw.search.outlook import by_goal, order_notes, outlook_of, value_of, with_outlook
from gangsaw.search.tail import step_tail
from gangsaw.simulate import StageTimes
from gangsaw.simulate.noise import TABLE, lognormal_table
from gangsaw.simulate.tail import After, Tables, draw_steps, graph_of, play_vector
from gangsaw.spec import Plan
from gangsaw.spec.result import GOALS

CUTS = (
    {},
    {"tp": 4, "dp": 16, "num_microbatches": 16},
    {"vpp": 2, "schedule": "interleaved"},
    {"schedule": "gpipe"},
    {"pp": 1, "dp": 32, "num_microbatches": 8, "zero": 3},
    {"tp": 1, "pp": 1, "dp": 256, "num_microbatches": 1, "zero": 3},
)
ONES = np.ones(TABLE, np.float32)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("routing", ["sprayed", "hashed"])
def test_laws_agree_with_drawn_steps(cut, routing):
    ev = evaluated(**cut)
    tail = step_tail(ev, day(steps=2000, clusters=100, routing=routing))
    if routing == "hashed":
        cluster = ev.job.cluster.model_copy(update={"name": "h100-roce"})
        ev = replace(ev, job=ev.job.model_copy(update={"cluster": cluster}))
    law = step_law(ev, FIGURES)
    assert law.mean_s == pytest.approx(tail.mean_s, rel=LAW_ERROR)
    p50, p95, _ = tail.percentiles
    # Slow hosts are there in about one cluster of twenty: drawn P95 are as unsure as they say.
    sure = 0.01 + 3.0 * p95.error_s / p50.step_s
    assert law.p95_s / law.p50_s == pytest.approx(tail.p95_over_p50, abs=sure)


def test_laws_agree_where_slow_hosts_are_usual():
    """Every fourth cluster has one: the spread is theirs, and draws show it."""
    noise = FIGURES.noise.model_copy(update={"slow_host_frac": 0.01, "slow_host_loss": 0.2})
    figures = FIGURES.model_copy(update={"noise": noise})
    ev = evaluated(tp=1, pp=1, dp=256, num_microbatches=1, zero=3)
    tail = step_tail(ev, day(figures, steps=4000, clusters=200))
    law = step_law(ev, figures)
    assert law.mean_s == pytest.approx(tail.mean_s, rel=LAW_ERROR)
    assert law.p95_s / law.p50_s > 1.1
    assert law.p95_s / law.p50_s == pytest.approx(tail.p95_over_p50, abs=0.02)


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [("1f1b", 2, 32, 1), ("1f1b", 8, 32, 1), ("1f1b", 16, 64, 1), ("zb-h1", 8, 32, 1),
     ("gpipe", 8, 32, 1), ("bfs", 8, 32, 4), ("interleaved", 8, 32, 2), ("interleaved", 16, 32, 4),
     ("interleaved", 4, 16, 8)],
)  # fmt: skip
def test_waits_of_even_stages(name, p, m, v):
    """In deviations of one operation, over the work of a rank, against drawn pipelines."""
    graph = graph_of(generate(name, p, m, v), StageTimes.of(p * v, 1.0, 2.0, 0.0))
    table = lognormal_table(0.02)
    plain = float(play_vector(graph, np.ones((p, 1))).max())
    drawn = draw_steps(graph, np.ones((1, 1, p)), Tables(table, ONES, ONES, 0.0, 0.0),
                       After(0, 0), 300, 0)  # fmt: skip
    found = (drawn.step_s.mean() - plain) / (3 * m * v) / 0.02
    assert waits(Plan(pp=p, vpp=v, num_microbatches=m, schedule=name), p) == pytest.approx(
        found, abs=0.1
    )


@pytest.mark.parametrize("n", [1, 4, 64, 2048])
def test_extremes(n):
    drawn = np.random.default_rng(n).standard_normal((4000, n)).max(axis=1)
    assert extreme(n) == pytest.approx(drawn.mean(), abs=0.05)
    assert extreme_sd(n) == pytest.approx(drawn.std(), abs=0.05)


@pytest.mark.parametrize("members", [1, 8, 256])
def test_largest_of_a_group(members):
    table = lognormal_table(0.025, members).astype(float)
    mean, sd = largest(0.025, members)
    assert mean == pytest.approx(table.mean(), rel=1e-4)
    assert sd == pytest.approx(table.std(), rel=0.02)
    # Some of them slow by 10 %: drawn.
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(0, 0.025, (20_000, members)))
    slow = min(8, members)
    x[:, :slow] *= 1.1
    assert largest(0.025, members, slow, 0.1)[0] == pytest.approx(x.max(axis=1).mean(), rel=1e-3)


def test_nothing_slow_is_the_estimate():
    ev = evaluated()
    law = step_law(ev, QUIET)
    assert law == pytest.approx([ev.cost.step] * 3)
    uneven = FIGURES.noise.model_copy(update={"sequence_cv": 0.2})
    with pytest.raises(InputError, match="gangsaw tail draws them"):
        step_law(ev, FIGURES.model_copy(update={"noise": uneven}))


def test_results_carry_time_and_money_with_failures():
    plans = [evaluated(), evaluated(tp=4, dp=16, num_microbatches=16)]
    results, notes = with_outlook([plan_result(ev) for ev in plans], plans)
    for result, ev in zip(results, plans, strict=True):
        law = step_law(ev, FIGURES)
        good = best_goodput(ev, FIGURES, law.mean_s)
        assert result.goodput_frac == good and 0.9 < good < 1.0
        assert result.expected_step_s == pytest.approx(law.mean_s / good)
        assert result.expected_step_s > 1.02 * result.step_time_s
        ratio = result.expected_usd_per_million_tokens / result.bill.usd_per_million_tokens
        assert ratio == pytest.approx(result.expected_step_s / result.step_time_s)
        assert result.p95_over_p50 == pytest.approx(law.p95_s / law.p50_s)
    assert len(notes) == 1


def test_notes_say_when_the_order_changes():
    """A plan in lock-step everywhere, and one that is not and is slower by less than that costs."""
    locked = evaluated(tp=1, pp=1, dp=256, num_microbatches=1, zero=3)
    free = evaluated(pp=1, dp=32, num_microbatches=8)
    free = replace(free, cost=free.cost._replace(step=locked.cost.step * 1.001))
    plans = [locked, free]
    seen = [outlook_of(ev) for ev in plans]
    assert seen[1].expected_s < seen[0].expected_s
    (note,) = order_notes(plans, seen)
    assert note.startswith("with tails and failures the order is 2, 1: plan 2 (TP8 DP32)")
    assert "cheaper than plan 1" in note
    near = [seen[0], seen[0]._replace(mean_s=seen[0].mean_s * 0.999)]
    (note,) = order_notes(plans, near)
    assert "sure of" in note
    (note,) = order_notes(plans, [seen[0], seen[1]._replace(mean_s=1e3)])
    assert "do not change" in note
    hopeless = seen[0]._replace(goodput_frac=0.0)
    (note,) = order_notes([locked], [hopeless])
    assert hopeless.expected_s is None and "never ends" in note
    assert value_of(locked, hopeless, "expected") == float("inf")


def test_order_by_each_goal():
    plans = [evaluated(**cut) for cut in CUTS]
    rows = [(ev, (), plan_result(ev)) for ev in plans]
    for goal in GOALS:
        ordered = by_goal(rows, goal)
        if goal == "time":
            assert ordered == rows
            continue
        values = [value_of(r[0], outlook_of(r[0]), goal) for r in ordered]
        assert values == sorted(values)


def test_half_the_devices_may_cost_less_and_take_longer():
    small = evaluate(job(devices=128), Plan(tp=8, pp=4, dp=4, num_microbatches=64))
    large = evaluated()
    a, b = outlook_of(small), outlook_of(large)
    assert value_of(small, a, "time") > value_of(large, b, "time")
    assert value_of(small, a, "expected") < value_of(large, b, "expected")
