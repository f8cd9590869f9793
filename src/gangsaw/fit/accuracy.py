"""The accuracy report: `python -m gangsaw.fit.accuracy docs/accuracy.md`.

Headline: every source predicted by a fit that has not seen it. In-sample errors stand apart. The
pictures lie beside the page in `accuracy/`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gangsaw.cost.fitted import load_fitted
from gangsaw.fit.baseline import baseline_errors
from gangsaw.fit.fit import NOT_TIMINGS, SAME_SOURCE, SETUP_SD, training_rows
from gangsaw.fit.goals import TRIED, goal_table, missed
from gangsaw.fit.memory_goals import memory_goal_lines
from gangsaw.fit.oracle_rows import oracle_part, read_oracle
from gangsaw.fit.outcome import ValidateResult
from gangsaw.fit.own_rows import lines_of
from gangsaw.fit.picture import Dot, bars, scatter
from gangsaw.fit.release import catalog_file, load_held_out
from gangsaw.fit.row_model import whole
from gangsaw.fit.row_stack import is_fp8
from gangsaw.fit.rows import Row, load_shipped, shipped_sources
from gangsaw.fit.scores import (
    Judgement,
    Score,
    Sweep,
    judged,
    mean_over,
    scores,
    sweeps,
    widths_by_source,
)
from gangsaw.fit.validate import validate
from gangsaw.fit.widths import HeldOut

ROUNDS = (0, 1, 3, 10)
PEERS = {
    "korthikanti": "Calculon 3.65 % on four of the rows (its own published validation, fitted)",
    "simumax-b200": "SimuMax 5.6 % on its full set, with the machine's kernels profiled",
    "vtrain-single": "vTrain 8.37 %, with every kernel profiled on the machine",
}


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    held_out: Sequence[HeldOut]
    rounds: Mapping[int, Sequence[Judgement]]
    by_round: Mapping[int, Sequence[Score]]
    baseline: Mapping[str, float]
    in_sample: Mapping[str, ValidateResult]
    sweeps: Sequence[Sweep]
    table: Mapping[str, Row]
    own_rows: Sequence[str]


def collect() -> Report:
    """Judge stored held-out rows, and predict all shipped rows with the shipped fit."""
    held_out = load_held_out()
    widths = widths_by_source(held_out)
    rounds = {k: judged(held_out, widths, k) for k in ROUNDS}
    shipped = {name: load_shipped(name) for name in shipped_sources()}
    table = {str(r["id"]): r for rows in shipped.values() for r in rows}
    merged: dict[str, list[Row]] = {}
    for name, rows in shipped.items():
        merged.setdefault(SAME_SOURCE.get(name, name), []).extend(rows)
    return Report(
        held_out,
        rounds,
        {k: scores(found) for k, found in rounds.items()},
        baseline_errors(training_rows()),
        {name: validate(rows) for name, rows in merged.items()},
        sweeps(held_out, table),
        table,
        lines_of(held_out, widths),
    )


def percent(value: float | None) -> str:
    """A fraction as per cent, or a dash."""
    return "-" if value is None or not np.isfinite(value) else f"{100 * value:.1f} %"


def in_sample_error(report: Report, source: str) -> float:
    """Mean absolute error of the fitted rows of a source under the fit that has seen them."""
    wanted = {h.id for h in report.held_out if h.source == source}
    errors = [
        abs(r.predicted_step_time_s / r.measured_step_time_s - 1.0)
        for r in report.in_sample[source].rows
        if r.id in wanted and r.predicted_step_time_s and r.measured_step_time_s
    ]
    return float(np.mean(errors))


def headline(report: Report) -> list[str]:
    """The table by source, left out whole."""
    after = {k: {s.source: s for s in report.by_round[k]} for k in ROUNDS}
    lines = [
        "| source | rows | left out | median | bias | 3 own rows | 10 own rows | in-sample"
        " | constant MFU + bubble | covered | width |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for s in report.by_round[0]:
        three, ten = after[3].get(s.source), after[10].get(s.source)
        lines.append(
            f"| {s.source} | {s.rows} | {percent(s.mean_abs)} | {percent(s.median_abs)} |"
            f" {percent(s.bias)} | {percent(three.mean_abs if three else None)} |"
            f" {percent(ten.mean_abs if ten else None)} |"
            f" {percent(in_sample_error(report, s.source))} |"
            f" {percent(report.baseline[s.source])} | {percent(s.covered)} | {percent(s.width)} |"
        )
    inside = np.mean([in_sample_error(report, s.source) for s in report.by_round[0]])
    lines.append(
        f"| **mean over sources** | | **{percent(mean_over(report.by_round[0], _error))}** | | |"
        f" **{percent(mean_over(report.by_round[3], _error))}** |"
        f" **{percent(mean_over(report.by_round[10], _error))}** | {percent(float(inside))} |"
        f" {percent(float(np.mean(list(report.baseline.values()))))} |"
        f" {percent(mean_over(report.by_round[0], lambda s: s.covered))} |"
        f" {percent(mean_over(report.by_round[0], lambda s: s.width))} |"
    )
    return lines


def _error(s: Score) -> float:
    return s.mean_abs


def unseen_lines(report: Report) -> list[str]:
    """Errors of rows that are never fitted, by source and quality."""
    fitted = {h.id for h in report.held_out}
    groups: dict[tuple[str, str], list[float]] = {}
    for source, result in report.in_sample.items():
        for r in result.rows:
            if r.id in fitted or source in NOT_TIMINGS:
                continue
            if r.predicted_step_time_s and r.measured_step_time_s:
                quality = str(report.table[r.id].get("quality"))
                error = r.predicted_step_time_s / r.measured_step_time_s - 1.0
                groups.setdefault((source, quality), []).append(error)
    lines = ["| source | quality | rows | mean error | bias |", "|---|---|--:|--:|--:|"]
    for (source, quality), errors in sorted(groups.items()):
        lines.append(
            f"| {source} | {quality} | {len(errors)} |"
            f" {percent(float(np.mean(np.abs(errors))))} | {percent(float(np.mean(errors)))} |"
        )
    return lines


def interval_lines(report: Report) -> list[str]:
    """Coverage and width by number of own rows."""
    lines = ["| own rows | covered, mean | worst source | width, mean |", "|--:|--:|--:|--:|"]
    for k in ROUNDS:
        found = report.by_round[k]
        worst = min(found, key=lambda s: s.covered)
        lines.append(
            f"| {k} | {percent(mean_over(found, lambda s: s.covered))} |"
            f" {percent(worst.covered)} ({worst.source}) |"
            f" {percent(mean_over(found, lambda s: s.width))} |"
        )
    return lines


def memory_lines(report: Report) -> list[str]:
    """Memory errors and the fate of runs."""
    lines = [
        "| source | peaks | mean error | bias | fates | right | risky | ran out, called fitting |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, result in report.in_sample.items():
        for s in result.summary.values():
            if s.memory_rows or s.oom_rows:
                lines.append(
                    f"| {name} | {s.memory_rows} | {percent(s.memory_mean_abs_frac)} |"
                    f" {percent(s.memory_bias_frac)} | {s.oom_rows} |"
                    f" {percent(s.oom_right_frac)} | {percent(s.risky_frac)} |"
                    f" {percent(s.missed_oom_frac)} |"
                )
    return lines


def sweep_lines(report: Report) -> list[str]:
    """Regret and rank correlation of the sweeps, by source."""
    lines = [
        "| source | sweeps | mean regret | worst | Spearman | Kendall |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for source in sorted({s.source for s in report.sweeps}):
        found = [s for s in report.sweeps if s.source == source]
        lines.append(
            f"| {source} | {len(found)} | {percent(float(np.mean([s.regret for s in found])))} |"
            f" {percent(max(s.regret for s in found))} |"
            f" {float(np.mean([s.spearman for s in found])):.2f} |"
            f" {float(np.mean([s.kendall for s in found])):.2f} |"
        )
    return lines


def worst_lines(report: Report, count: int = 10) -> list[str]:
    """The rows predicted worst, and what their time answers to."""
    assumed = {r.id: r.assumed for res in report.in_sample.values() for r in res.rows}
    worst = sorted(report.rounds[0], key=lambda j: -abs(np.log(j.predicted_s / j.row.step_s)))
    lines = ["| row | measured | predicted | error | what explains it |", "|---|--:|--:|--:|---|"]
    for j in worst[:count]:
        why = explain(j, report.table[j.row.id], assumed.get(j.row.id, ()))
        lines.append(
            f"| {j.row.id} | {j.row.step_s:.3g} s | {j.predicted_s:.3g} s |"
            f" {100 * j.error:+.0f} % | {why} |"
        )
    return lines


def explain(j: Judgement, row: Row, assumed: Sequence[str]) -> str:
    """What is known about a row that is predicted badly."""
    said = []
    if j.row.view.moe:
        said.append("routed model: the dispatcher, and what graphs take, follow its release")
    if assumed:
        said.append("assumed " + "; ".join(assumed))
    if j.row.source == "vtrain-single":
        said.append("tiny model, host-bound; a sum of profiled parts")
    if "14400" in str(row["model"].get("hidden")):
        said.append("head width 150, no multiple of 8: slow unfused kernels seen nowhere else")
    return ". ".join(said) or "the stack is seen in no other source"


def parameter_lines() -> list[str]:
    """All fitted parameters."""
    import tomllib

    table = tomllib.loads(catalog_file("fitted.toml").read_text("utf-8"))["parameter"]
    lines = ["| parameter | value | doubt | prior | meaning |", "|---|--:|--:|--:|---|"]
    for name, p in table.items():
        lines.append(
            f"| `{name}` | {p['value']:.3f} | {p['doubt']:.2f} | {p['prior']:g} | {p['meaning']} |"
        )
    return lines


def page(report: Report, oracle: Sequence[Mapping[str, Any]] = ()) -> str:
    """The whole page as Markdown; `oracle`: traced peaks, as `oracle_rows` reads them."""
    zero = report.by_round[0]
    worse = [s.source for s in zero if s.mean_abs >= report.baseline[s.source]]
    beaten = "on every source" if not worse else "on all sources but " + ", ".join(worse)
    parts = [
        "# How wrong the predictions are",
        "Made by `python -m gangsaw.fit.accuracy docs/accuracy.md` from the rows of"
        " `catalog/runs` and the fit of `python -m gangsaw.fit.fit`. A source is predicted by a"
        " fit that has not seen any of its rows; sources count alike. Rows of quality C and times"
        " that were computed from TFLOP/s or MFU are not fitted and not scored here; times from"
        " stated tokens a second are the same figure as the time and are used. Priors and the"
        " structure of the formulas were chosen with these sources known, so a new source may be"
        " a few points worse.",
        "\n".join(headline(report)),
        f"Constant MFU plus bubble is beaten {beaten}. Published errors of others on these rows: "
        + "; ".join(f"{k}: {v}" for k, v in PEERS.items())
        + ".",
        "![predicted against measured](accuracy/scatter.svg)",
        "![errors by source](accuracy/errors.svg)",
        "## Goals",
        "\n".join(goal_table(report.by_round, report.sweeps, report.rounds)),
        "\n".join(missed(report.by_round, report.sweeps, report.rounds)),
        "## Tried without gain",
        "\n".join(f"- {text}." for text in TRIED),
        "## Rows that no fit has seen",
        "Times computed from TFLOP/s or MFU and rows that lack part of the plan (quality C).",
        "\n".join(unseen_lines(report)),
        "## Intervals of 80 %",
        "Widths are estimated without the source that they are judged on. Own rows are chosen by"
        " their plans alone, for all plans of the set-up.",
        "\n".join(interval_lines(report)),
        "## Own rows: more of them, and wrong ones",
        *report.own_rows,
        "## Order of plans",
        "Rows that differ in the plan alone, ordered by the physical prediction with the source"
        " left out. Regret: what the plan predicted best costs over the measured best.",
        "\n".join(sweep_lines(report)),
        "## Memory",
        "Goals, of distinct topologies. Stack profiles as shipped: their entries were set with"
        " these tables known, so this is in-sample.",
        "\n".join(memory_goal_lines()),
        "All shipped rows with a measured peak or a known fate. Of `megatron-ci-large` the two"
        " routed rows are low: Megatron's own FSDP with eight-bit weights (2.4 GiB in all), and"
        " latent attention with unfused scores and a layer that predicts a second token. Of"
        " `llama3-405b` the run on 8,192 devices is called too large: its stack is no"
        " profile's, and only its likeliest reading is judged.",
        "\n".join(memory_lines(report)),
        oracle_part(oracle),
        "## The ten worst rows",
        "\n".join(worst_lines(report)),
        "## Fitted parameters",
        f"{len(load_fitted())} factors. value: the factor; doubt and prior: deviations of its"
        " logarithm after and before the data. None exists for a row or a file. An offset of each"
        f" whole set-up (deviation {SETUP_SD:g}) is integrated out beside them, so that the many"
        " rows of one machine do not pass for physics.",
        "\n".join(parameter_lines()),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _kind(j: Judgement, row: Row) -> str:
    """The kind of a run, one of the picture's."""
    if j.row.view.moe:
        return "routed"
    if whole(row["plan"].get("cp") or 1) > 1:
        return "long sequence, context parallel"
    return "dense, 8 bits" if is_fp8(row) else "dense, 16 bits"


def pictures(report: Report) -> dict[str, str]:
    """The pictures by file name."""
    dots = [
        Dot(j.row.step_s, j.predicted_s, j.row.source, _kind(j, report.table[j.row.id]))
        for j in report.rounds[0]
    ]
    after = {s.source: s.mean_abs for s in report.by_round[3]}
    rows: dict[str, list[float | None]] = {
        s.source: [s.mean_abs, after.get(s.source), report.baseline[s.source]]
        for s in report.by_round[0]
    }
    notes = {s.source: f"{100 * s.mean_abs:.1f} %" for s in report.by_round[0]}
    labels = ["source left out", "after 3 own rows", "constant MFU + bubble"]
    return {
        "scatter.svg": scatter(
            dots,
            notes,
            "Predicted (upwards) against measured step: the fit has not seen any row of the source",
        ),
        "errors.svg": bars(rows, labels, "Mean absolute error of step time by source"),
    }


def main(path: Path) -> None:
    """Write the page and its pictures."""
    report = collect()
    folder = path.parent / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures(report).items():
        (folder / name).write_text(text, "utf-8")
    path.write_text(page(report, read_oracle(path.parent)), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/accuracy.md"))
