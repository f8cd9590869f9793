"""docs/claims.md: numeric claims of three articles, recomputed from the catalog.

`python -m gangsaw.search.claims docs/claims.md` writes the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gangsaw.bill import claims_money, claims_time
from gangsaw.bill.claims_base import CLAIMS, Claim
from gangsaw.errors import InputError
from gangsaw.search import claims_plans

MODULES = (claims_time, claims_money, claims_plans)
"""Modules whose import registers claims."""

_HEAD = """# Claims about tensor and pipeline parallelism, recomputed

Three articles argue about how to cut the training of large models. Each numeric claim below is
computed again by gangsaw's own functions from its catalog of devices, links and prices, and gets a
verdict: right, wrong, conditional (true for stated inputs only) or unverifiable (a forecast, or no
sourced figure). "Review" is the verdict of an earlier check by hand; where its verdict or its
arithmetic does not hold, the line says why. Compute and collectives are timed for the software
generation `megatron-core-te`, attention in formulas is counted over the full square unless said
otherwise, and MFU is 0.5 where a formula needs one.

This file is generated: `python -m gangsaw.search.claims docs/claims.md`.
"""


def computed_claims() -> tuple[Claim, ...]:
    """All claims, computed now, by number."""
    return tuple(sorted((make() for make in CLAIMS), key=lambda c: c.number))


def claims_markdown(claims: tuple[Claim, ...]) -> str:
    """The document: a table of verdicts, then each claim with its arithmetic."""
    counts = {v: sum(c.verdict == v for c in claims) for v in sorted({c.verdict for c in claims})}
    tally = ", ".join(f"{n} {v}" for v, n in counts.items())
    disputed = [c for c in claims if c.dispute]
    out = [_HEAD, f"{len(claims)} claims: {tally}. The review is disputed in {len(disputed)}.", ""]
    out += ["| # | article | claim | verdict | review |", "|--:|---|---|---|---|"]
    out += [
        f"| {c.number} | {c.article} | {c.text} | **{c.verdict}** |"
        f" {c.usual}{' (disputed)' if c.dispute else ''} |"
        for c in claims
    ]
    for c in claims:
        out += ["", f"## {c.number}. {c.text[0].upper()}{c.text[1:]}", "", f"**{c.verdict}**", ""]
        out += [f"- {line}" for line in c.arithmetic]
        out.append(f"- changes the verdict: {c.flips}")
        if c.dispute:
            out.append(f"- against the review: {c.dispute}")
    return "\n".join(out) + "\n"


def main(arguments: list[str]) -> int:
    """Write the document to the file named, and nothing else."""
    if len(arguments) != 1:
        raise InputError("claims: one argument, the file to write")
    Path(arguments[0]).write_text(claims_markdown(computed_claims()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
