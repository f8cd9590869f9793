import pytest
from rich.console import Console

from gangsaw.report.walk import cell, explain_text, label
from gangsaw.spec.base import Document


class Step(Document):
    title: str
    why: str
    trials: tuple[dict[str, object], ...]


class Walk(Document):
    model: str
    steps: tuple[Step, ...]


WALK = Walk(
    model="llama-3.1-8b",
    steps=(
        Step(
            title="1. One layer",
            why="memory of a layer decides whether TP is needed",
            trials=(
                {"tp": 1, "layer_bytes": 2.0**30, "collective_s": 0.0, "fits": True},
                {"tp": 2, "layer_bytes": 2.0**29, "collective_s": 1.5e-3, "fits": True},
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("step_time_s", 6.5, "6.50 s"),
        ("layer_bytes", 2.0**30, "1.00 GiB"),
        ("link_bytes_per_s", 5e10, "50.0 GB/s"),
        ("peak_flops_per_s", 1e15, "1,000T FLOP/s"),
        ("mfu_frac", 0.401, "40.1 %"),
        ("idle_device_s", 7200.0, "2.00 device-h"),
        ("step_usd", 98.07, "$98.1"),
        ("tp", 8, "8"),
        ("fits", False, "no"),
        ("nothing", None, "-"),
        ("stages", (7, 8, 8), "7, 8, 8"),
    ],
)
def test_a_number_is_said_in_the_unit_of_its_name(key, value, said):
    assert cell(key, value) == said


def test_labels_drop_the_unit():
    assert label("step_time_s") == "step time"
    assert label("link_bytes_per_s") == "link"
    assert label("bubble_frac") == "bubble share"


def test_a_walk_shows_every_step_reason_and_trial():
    console = Console(width=100, no_color=True, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        explain_text(WALK, console)
    text = capture.get()
    for said in ("1. One layer", "memory of a layer decides", "1.00 GiB", "0.500 GiB", "1.50 ms"):
        assert said in text
    assert max(map(len, text.split("\n"))) <= 100


def test_the_chosen_row_is_marked_and_the_conclusion_comes_last():
    console = Console(width=100, no_color=True, highlight=False, markup=False, emoji=False)
    rows = ({"tp": 1, "chosen": False}, {"tp": 2, "chosen": True})
    with console.capture() as capture:
        explain_text({"title": "T", "conclusion": "so TP 2", "layers": rows}, console)
    lines = [line.split() for line in capture.get().splitlines() if line.strip()]
    assert [">", "2"] in lines
    assert ["1"] in lines
    assert lines[-1] == ["so", "TP", "2"]
