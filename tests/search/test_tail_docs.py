"""What docs/tail.md says is predicted is what is predicted."""

from pathlib import Path

import numpy as np

from gangsaw.bill.expected import effective_restart_s, goodput_frac, optimum_interval_s
from gangsaw.read.clusters import load_cluster
from gangsaw.read.reliability import load_reliability
from gangsaw.search.fabric_health import congestion_rows
from gangsaw.simulate.failures import Strategy, failure_classes, mtbf_s, restart_s

TEXT = (Path(__file__).parents[2] / "docs" / "tail.md").read_text(encoding="utf-8")
FIGURES = load_reliability()


def goodput(devices, warm):
    """Saves of 0.6 s that are safe after 51 s, a load of 30 s: the file system of Llama 3."""
    classes = failure_classes(FIGURES, load_cluster(f"h100-sxm:{devices}"), devices)
    mean, strategy = mtbf_s(classes), Strategy("", 1, warm, False)
    once = effective_restart_s(
        [(c.per_s, restart_s(c, FIGURES.recovery, strategy, 30.0, True)) for c in classes], mean
    )
    return goodput_frac(0.6, 51.0, optimum_interval_s(0.6, mean, 51.0), mean, once), once


def test_goodput_of_published_runs():
    for devices, said in (
        (16384, "92.8 % warm, 87.6 % cold"), (9600, "95.5 % warm, 92.4 % cold"),
        (12288, "94.4 % warm, 90.4 % cold"),
    ):  # fmt: skip
        warm, cold = (100 * goodput(devices, w)[0] for w in (True, False))
        assert f"{warm:.1f} % warm, {cold:.1f} % cold" == said
        assert said in TEXT
    warm, cold = (goodput(16384, w)[1] / 60 for w in (True, False))
    assert f"{warm:.0f} min warm, {cold:.0f} min cold" in TEXT


def test_interruptions_of_54_days():
    mean = mtbf_s(failure_classes(FIGURES, load_cluster("h100-sxm:16384"), 16384))
    assert f"| 419 | {54 * 86400 / mean:.0f} (" in TEXT
    assert f"| 3.09 | {mean / 3600:.2f} |" in TEXT


def test_collisions_for_16_devices_a_leaf():
    rows = congestion_rows(FIGURES, 16, 0)
    for over in (1.0, 2.0, 7.0):
        one, many, spray = (r for r in rows if r.oversubscription == over)
        cells = [f"{r.mean:.2f} ({r.p99:.3g})" for r in (one, many)]
        line = next(x for x in TEXT.splitlines() if x.startswith(f"| {over:.0f}:1"))
        for number, cell in zip(
            (one.mean, many.mean, spray.mean), line.split("|")[2:5], strict=True
        ):
            assert np.isclose(float(cell.replace("(", " ").split()[0]), number, atol=0.006), cells
