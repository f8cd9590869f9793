"""What docs/tail.md says is predicted is what is predicted."""

from pathlib import Path

import numpy as np
import pytest

from gangsaw.bill.expected import effective_restart_s, goodput_frac, optimum_interval_s
from gangsaw.read.clusters import load_cluster
from gangsaw.read.reliability import load_reliability, parse_reliability
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


def test_mean_time_to_failure_by_job_size():
    """RSC-1, arXiv:2410.21680: two rates of two counts, each agrees with 1/N in itself."""

    def hours(devices, per_1000_host_days):
        tables = {"components": {"host": {
            "rate": f"{per_1000_host_days}/1000day", "unit": "host", "cure": "replace",
            "source": "arXiv:2410.21680", "as_of": "2024-10",
        }}}  # fmt: skip
        own = parse_reliability(tables, "here", FIGURES)
        own = own.model_copy(update={"components": {"host": own.components["host"]}})
        cluster = load_cluster(f"a100-sxm-80g:{devices}")
        return mtbf_s(failure_classes(own, cluster, devices)) / 3600

    measured = 1000 / 47.7  # failures a 1,000 host-days, from 47.7 days of 8 devices
    assert hours(8, measured) == pytest.approx(47.7 * 24)
    assert f"| 7.9 measured | {hours(1024, measured):.1f} from its measured" in TEXT
    assert f"{hours(1024, 6.5):.1f} from the 6.5" in TEXT
    assert f"{hours(16384, 6.5):.2f}, {hours(131072, 6.5):.2f} from its 6.5" in TEXT
    own_1024 = 1000 * 24 / (128 * 7.9)
    assert f"({measured:.0f} failures a 1,000 host-days at 8 devices, {own_1024:.0f} at" in TEXT
    assert f"{measured / 6.5:.1f} to {own_1024 / 6.5:.1f}" in TEXT
