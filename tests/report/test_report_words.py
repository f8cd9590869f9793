import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fixtures import plan_list, plans

from gangsaw.report import words
from gangsaw.report.text import miss_text


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((6.5, 6.1, 7.0), "6.5 s (6.1-7.0)"),
        ((0.11, 0.102, 0.119), "110 ms (102-119)"),
        ((6.53, 6.525, 6.535), "6.53 s (6.53-6.54)"),
        ((86400.0 * 3, 86400.0 * 2.5, 86400.0 * 4), "3.0 d (2.5-4.0)"),
        ((2.0, 2.0, 2.0), "2.00 s"),
        ((42.0, 38.0, 47.0), "42 s (38-47)"),
    ],
)
def test_interval(times, said):
    assert words.interval_s(*times) == said


@given(st.floats(1e-5, 1e6), st.floats(0.01, 0.5))
def test_interval_has_one_unit_and_its_middle_inside(value, doubt):
    text = words.interval_s(value, value * (1 - doubt), value * (1 + doubt))
    middle, _unit, ends = text.split(" ")
    low, high = (float(x.replace(",", "")) for x in ends.strip("()").split("-"))
    assert low <= float(middle.replace(",", "")) <= high


def test_runs_fold_and_keep_the_sum():
    assert words.runs((7, 8, 8, 8, 7)) == "7, 8x3, 7"
    assert words.runs((10, 12)) == "10, 12"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_runs_can_be_read_back(stages):
    back = []
    for part in words.runs(stages).split(", "):
        value, _, count = part.partition("x")
        back += [int(value)] * int(count or 1)
    assert back == stages


def test_all_degrees_are_always_said():
    for result in plans():
        said = words.in_words(result.plan)
        for axis in ("TP", "CP", "PP", "DP", "EP", "ETP"):
            assert f"{axis} " in said


def test_limit_names_the_largest_loss():
    worst = plans()[0]
    idle = [line for line in worst.bill.lines if line.cause not in ("compute", "optimizer")]
    largest = max(idle, key=lambda line: line.device_s)
    assert words.CAUSE_TITLES[largest.cause] in words.limits(worst)


def test_limit_says_when_memory_is_nearly_full():
    result = plans()[0]
    full = result.model_copy(
        update={"memory": result.memory.model_copy(update={"headroom_frac": 0.01})}
    )
    assert "1.0 % free" in words.limits(full)


def test_small_money_is_said_per_billion():
    assert words.money_per_tokens(5.84) == "$5.84 / M tokens"
    assert words.money_per_tokens(0.0042) == "$4.20 / B tokens"


def test_a_miss_is_said_in_units():
    miss = {"plan": {"tp": 8, "pp": 16}, "lacks": "memory", "missing_bytes": 12 * 2.0**30}
    assert miss_text(miss) == "tp 8 pp 16; memory; missing 12.0 GiB"


def test_every_cause_has_a_title_a_meaning_a_colour_and_a_letter():
    from gangsaw.report import colours
    from gangsaw.spec.result import CAUSES

    for table in (
        words.CAUSE_TITLES, words.CAUSE_MEANINGS, colours.CAUSE_COLOURS, colours.CAUSE_LETTERS,
    ):  # fmt: skip
        assert set(table) == set(CAUSES)
    assert len(set(colours.CAUSE_LETTERS.values())) == len(CAUSES)
    assert plan_list().plans


def test_causes_are_spelled_out_in_reasons():
    said = words.spelled("saves tp_comm 5.0 %, bubble 1.0 %; pays dp_comm 3.0 %")
    assert said == "saves TP communication 5.0 %, bubble 1.0 %; pays DP communication 3.0 %"


def test_a_miss_of_a_search_says_what_it_lacks_and_what_helps():
    plan = plans()[0].plan.model_dump()
    said = miss_text(
        {
            "plan": plan, "devices": 128, "step_time_s": 10.8, "peak_bytes": 70 * 2.0**30,
            "capacity_bytes": 79 * 2.0**30, "lacks": "120 devices", "remedy": "128 devices",
        }
    )  # fmt: skip
    assert said.startswith("lacks 120 devices: TP 8 CP 1 PP 16x7 DP 128 EP 1 ETP 1")
    assert said.endswith("with 128 devices, 10.8 s a step, 70.0 GiB where 79.0 GiB fit")
