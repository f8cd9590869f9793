"""Claims that only a search of plans can answer."""

from __future__ import annotations

import math

from gangsaw.bill.claims_base import CLAIM_STACK, Claim, claim
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.families import FAMILIES, survey
from gangsaw.search.ranking import words_of
from gangsaw.spec.job import Job
from gangsaw.spec.recipe import Recipe

CASES = (
    ("llama-3.1-8b", "h100-sxm:32", 8192, 128),
    ("llama-3.1-70b", "h100-sxm:64", 8192, 256),
    ("llama-3.1-405b", "h100-sxm:16384", 8192, 2048),
    ("gpt-1t", "h100-sxm:2048", 2048, 1536),
)
"""Model, cluster, tokens a sequence and sequences a step."""


def hybrid_against_pure(model: str, cluster: str, seq_len: int, batch: int) -> tuple[float, str]:
    """How much faster the best hybrid is than the best pure plan, and what both are."""
    job = Job(
        model=load_model(model),
        recipe=Recipe(seq_len=seq_len, global_batch=batch),
        cluster=load_cluster(cluster),
        stack=load_stack(CLAIM_STACK),
    )
    best = survey(job, 1).best
    found = {f: best[f].found for f in FAMILIES}
    hybrid = found["hybrid"]
    pure = {f: e for f, e in found.items() if e is not None and f != "hybrid"}
    if hybrid is None:
        return 0.0, f"{model} on {cluster}: no hybrid fits"
    if not pure:
        words, step_s = words_of(hybrid.plan), hybrid.cost.step
        return math.inf, f"{model} on {cluster}: hybrid {words} {step_s:.3g} s; no pure plan fits"
    family, other = min(pure.items(), key=lambda row: row[1].cost.step)
    gain = float(other.cost.step / hybrid.cost.step - 1.0)
    return gain, (
        f"{model} on {cluster}: hybrid {words_of(hybrid.plan)} {hybrid.cost.step:.3g} s, pure"
        f" {family} {words_of(other.plan)} {other.cost.step:.3g} s: {100 * gain:+.0f} %"
    )


@claim
def hybrids() -> Claim:
    """Article 3: 15-25 % faster."""
    rows = [hybrid_against_pure(*case) for case in CASES]
    inside = sum(0.15 <= gain <= 0.25 for gain, _ in rows)
    return Claim(
        26,
        "3",
        "hybrids train 15-25 % faster",
        "right" if inside == len(rows) else "conditional",
        (
            "best hybrid against the best pure plan of a whole search each:",
            *(said for _, said in rows),
            f"within 15-25 %: {inside} of {len(rows)}",
        ),
        "model, cluster and batch: small models gain nothing; where one axis alone must leave the"
        " node, or nothing else fits, the gain has no such limit",
        "unverifiable",
        "as a forecast it names no case, but each case can be computed; the gain is no constant",
    )
