"""The checked-in traced peaks: predicted within 5 % by the formulas of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangsaw.fit.oracle_rows import oracle_lines, oracle_part, read_oracle
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import Job, Plan, Recipe

ROWS = read_oracle(Path(__file__).parents[2] / "docs")


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['case']}-{r['rank']}")
def test_predicted_within_five_per_cent_of_the_trace(row):
    plan = Plan.model_validate(row["plan"])
    model = load_model(row["model"])
    if "layers" in row["case"]:
        model = model.model_copy(update={"order": (0,) * row["layers"]})
    job = Job(
        model=model,
        recipe=Recipe(
            seq_len=row["seq_len"], global_batch=plan.dp * plan.mbs * plan.num_microbatches
        ),
        cluster=load_cluster(f"h100-sxm:{plan.devices}"),
        stack=load_stack("torchtitan"),
    )
    found = estimate(job, plan).memory.per_stage[row["rank"]].peak_allocated_bytes
    assert found == pytest.approx(row["traced_bytes"], rel=0.05)
    assert found == pytest.approx(row["predicted_bytes"], rel=1e-6), "run the benchmark again"


def test_the_models_that_matter_are_there():
    assert {r["model"] for r in ROWS} == {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}
    assert len(oracle_lines(ROWS)) == len(ROWS) + 2
    assert oracle_part([]) == ""
    assert f"{len(ROWS)} traced ranks" in oracle_part(ROWS)
