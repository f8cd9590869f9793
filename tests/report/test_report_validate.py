from rich.console import Console

from gangsaw.fit.outcome import SourceSummary, ValidateResult, ValidateRow
from gangsaw.report.validate_text import signed, time_error, validate_text, worst_rows


def row(name, measured=10.0, predicted=11.0, **change):
    values = {
        "id": name, "source": "one", "stack": "megatron-core-te", "calibration": False,
        "measured_step_time_s": measured, "predicted_step_time_s": predicted,
        "predicted_lo_s": predicted * 0.9, "predicted_hi_s": predicted * 1.1,
    }  # fmt: skip
    return ValidateRow(**{**values, **change})


ROWS = (
    row("a", 10.0, 11.0),
    row("b", 10.0, 7.0),
    row("c-with-a-name-that-is-much-longer-than-a-column-of-a-terminal-can-hold-on-one-line"),
    row("d", calibration=True, predicted=99.0),
    row("e", skipped="no microbatch is stated", predicted=1.0),
    row("f", measured=None),
)
RESULT = ValidateResult(
    rows=ROWS,
    summary={
        "one": SourceSummary(
            rows=6, skipped=1, calibration=1, time_rows=3, time_mean_abs_frac=0.166,
            time_bias_frac=-0.034, covered_frac=0.667, memory_rows=2, memory_mean_abs_frac=0.021,
            memory_bias_frac=0.01, oom_rows=0,
        )
    },
)  # fmt: skip


def test_used_skipped_and_unmeasured_rows_have_no_error():
    assert [time_error(r) is None for r in ROWS] == [False, False, False, True, True, True]
    assert abs(time_error(ROWS[0]) - 0.1) < 1e-12


def test_worst_rows_are_ranked_by_ratio():
    assert [r.id[0] for _, r in worst_rows(ROWS)] == ["b", "a", "c"]


def test_sign_is_always_shown():
    assert (signed(0.031), signed(-0.2), signed(None)) == ("+3.1 %", "-20.0 %", "-")


def test_text_says_errors_memory_worst_and_skipped_in_ascii():
    console = Console(width=100, no_color=True, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        validate_text(RESULT, console)
    text = capture.get()
    assert text.isascii()
    assert max(map(len, text.split("\n"))) <= 100
    for said in (
        "6 rows, 1 skipped, 1 to calibrate on", "16.6 %", "-3.4 %", "66.7 %", "2.1 %", "-30.0 %",
        "skipped e: no microbatch is stated",
    ):  # fmt: skip
        assert said in text
