"""The shipped fit: all rows, each source left out in turn, widths of the intervals, one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangsaw.cost.doubt import Widths, widths_table
from gangsaw.fit.fit import Fitted

HEADER = """\
# Factors fitted to the measured runs of catalog/runs, made by `python -m gangsaw.fit.fit`.
# value: the factor; doubt, prior: deviations of its logarithm after and before the data.
"""


def toml_of(fitted: Fitted, widths: Widths, errors: Mapping[str, Any]) -> str:
    """The text of catalog/fitted.toml."""
    lines = [HEADER, "[interval]"]
    table = widths_table(widths)
    for key in ("rho", "length", "dense", "moe"):
        lines.append(f"{key} = {table[key]:.4g}")
    lines.append("[interval.tau]")
    lines += [f"{name} = {value:.4g}" for name, value in table["tau"].items()]
    lines.append("")
    lines.append("[held_out]")
    lines += [f'"{name}" = {value:.4f}' for name, value in errors.items()]
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


def mean_of(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)
