"""The shipped fit: all rows, each source left out in turn, widths of the intervals, two files.

`catalog/fitted.toml` holds the parameters and the widths, `catalog/held_out.jsonl` each row as the
fit without its source predicts it, from which `fit.accuracy` and the tests judge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from gangsaw.cost.doubt import View, Widths, place, shares, widths_table
from gangsaw.fit.fit import Fitted, fit, fit_without, setup_of, training_rows
from gangsaw.fit.observe import Observation, predict, predictor
from gangsaw.fit.widths import HeldOut, fit_widths

HEADER = """\
# Factors fitted to the measured runs of catalog/runs, made by `python -m gangsaw.fit.fit`.
# value: the factor; doubt, prior: deviations of its logarithm after and before the data.
"""


def view_of_row(obs: Observation, values: Mapping[str, float], count: int) -> View:
    """A row as the doubt sees it; unstated fields are a deviation of their own."""
    found = predict(obs, values, predictor(count))
    phi = shares(found.bubble_frac, found.slopes, obs.moe)
    heaviest = max(obs.cases, key=lambda c: c.weight)
    return View(found.log_s, phi, place(heaviest.args), obs.moe, found.reading_sd)


def held_out_rows(
    by_source: Mapping[str, Sequence[Observation]], start: Mapping[str, float]
) -> list[HeldOut]:
    """All rows as predicted by the fit that leaves their source out."""
    out = []
    for source in sorted(by_source):
        values = fit_without(by_source, source, start).table()
        for obs in by_source[source]:
            view = view_of_row(obs, values, 100)
            out.append(HeldOut(obs.id, source, setup_of(source, obs), obs.step_s or 0.0, view))
    return out


def line_of(h: HeldOut) -> str:
    """A held-out row as a line of JSON."""
    v = h.view
    return json.dumps(
        {
            "id": h.id, "source": h.source, "group": h.group, "step_s": h.step_s,
            "log_s": round(v.log_s, 5), "phi": [round(float(x), 4) for x in v.phi],
            "z": [round(float(x), 3) for x in v.z], "moe": v.moe,
            "extra_sd": round(v.extra_sd, 4),
        },
        separators=(",", ":"),
    )  # fmt: skip


def load_held_out() -> list[HeldOut]:
    """The stored held-out rows."""
    text = resources.files("gangsaw.catalog").joinpath("held_out.jsonl").read_text("utf-8")
    out = []
    for line in text.splitlines():
        d = json.loads(line)
        view = View(d["log_s"], np.array(d["phi"]), np.array(d["z"]), d["moe"], d["extra_sd"])
        out.append(HeldOut(d["id"], d["source"], d["group"], d["step_s"], view))
    return out


def toml_of(fitted: Fitted, widths: Widths) -> str:
    """The text of catalog/fitted.toml."""
    table = widths_table(widths)
    lines = [HEADER, "[interval]"]
    lines += [f"{key} = {table[key]:.4g}" for key in ("rho", "length", "dense", "moe")]
    lines += ["", "[interval.tau]"]
    lines += [f"{name} = {value:.4g}" for name, value in table["tau"].items()]
    for p, value, doubt in zip(fitted.parameters, fitted.values, fitted.doubts, strict=True):
        lines += [
            "",
            f'[parameter."{p.name}"]',
            f"value = {math.exp(value):.4f}",
            f"doubt = {doubt:.3f}",
            f"prior = {p.prior:g}",
            f'meaning = "{p.meaning}"',
        ]
    return "\n".join(lines) + "\n"


def catalog_file(name: str) -> Path:
    """A file of the catalog, for writing."""
    import gangsaw.catalog

    (folder,) = gangsaw.catalog.__path__
    return Path(folder) / name


def main() -> None:
    """Refit everything from the shipped rows and write both files."""
    by_source = training_rows()
    fitted = fit(by_source)
    held_out = held_out_rows(by_source, fitted.table())
    text = "\n".join(map(line_of, held_out)) + "\n"
    catalog_file("held_out.jsonl").write_text(text, "utf-8")
    # From what was written, so that stored rows and widths agree to the last digit.
    catalog_file("fitted.toml").write_text(toml_of(fitted, fit_widths(load_held_out())), "utf-8")
    errors: dict[str, list[float]] = {}
    for h in held_out:
        errors.setdefault(h.source, []).append(abs(math.expm1(-h.residual)))
    for source, found in errors.items():
        print(f"{source:<18} {len(found):4d} rows, left out: {100 * np.mean(found):5.1f} %")
    print(f"mean over sources {100 * np.mean([np.mean(e) for e in errors.values()]):.1f} %")
