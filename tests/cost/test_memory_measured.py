"""Predicted against published peaks, one error a distinct topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from memory_helpers import GIB

from gangsaw.cost.layout import default_counts
from gangsaw.cost.memory_doc import capacity_of, memory_doc, rank_memories
from gangsaw.cost.types import RankMem
from gangsaw.fit.rows import Candidate, load_shipped, read_row
from gangsaw.read.stacks import load_stack

Row = Mapping[str, Any]


def measured_rows(source: str) -> Iterator[tuple[Row, Candidate]]:
    """Rows with a peak or an out-of-memory, in the likeliest reading."""
    for row in load_shipped(source):
        if row["measured"].get("peak_mem_gb") or row["measured"].get("oom"):
            reading = read_row(row)
            if reading.skipped is None:
                yield row, max(reading.candidates, key=lambda c: c.weight)


def topology(candidate: Candidate) -> str:
    """What memory depends on: more microbatches than fill the pipeline change nothing."""
    plan, model = candidate.plan, candidate.job.model
    m = min(plan.num_microbatches, 2 * plan.pp)
    shape = (model.layers, model.hidden, model.vocab, candidate.job.recipe.seq_len)
    return f"{shape} {m} {candidate.job.stack.name} " + plan.model_dump_json(
        exclude={"num_microbatches"}
    )


def ranks_of(candidate: Candidate) -> list[RankMem]:
    stages = candidate.plan.stages
    assert stages is not None
    return [found for _, found in rank_memories(candidate.job, candidate.plan, stages)]


def summary(errors: Mapping[str, float]) -> tuple[float, float]:
    """Mean and worst absolute error in per cent."""
    values = 100 * np.abs(list(errors.values()))
    return float(values.mean()), float(values.max())


def test_simumax_b200() -> None:
    allocated, reserved = {}, {}
    for row, candidate in measured_rows("simumax-b200"):
        assert candidate.job.stack.name == "megatron-core-te"
        found = ranks_of(candidate)
        key, m = topology(candidate), row["measured"]
        allocated[key] = max(f.allocated for f in found) / GIB / m["peak_mem_gb"] - 1
        reserved[key] = max(f.reserved for f in found) / GIB / m["peak_reserved_gib"] - 1
    assert len(allocated) == 10
    mean, worst = summary(allocated)
    assert mean < 0.45
    assert worst < 1.5
    assert summary(reserved)[0] < 2.5


def test_zero_bubble_family() -> None:
    errors = {}
    for row, candidate in measured_rows("zerobubble2"):
        peak = max(f.allocated for f in ranks_of(candidate))
        errors[topology(candidate)] = peak / GIB / row["measured"]["peak_mem_gb"] - 1
    assert len(errors) == 26
    assert summary(errors)[0] < 3.0


def test_bloom_sweep_and_its_out_of_memory() -> None:
    # nvidia-smi of the first and the last stage, whole GiB; rows that the source's own table
    # contradicts are marked there and left out
    errors, ran_out = {}, 0
    for row, candidate in measured_rows("bloom-sweep"):
        if "inconsistent" in row["notes"].lower():
            continue
        found = ranks_of(candidate)
        peak = max(found[0].device, found[-1].device)
        if row["measured"].get("oom"):
            ran_out += 1
            assert peak > capacity_of(candidate.job.cluster), row["id"]
            stages = candidate.plan.stages
            assert stages is not None
            assert memory_doc(candidate.job, candidate.plan, stages).fits == "no"
        else:
            errors[topology(candidate)] = peak / GIB / row["measured"]["peak_mem_gb"] - 1
    assert len(errors) > 60
    assert ran_out == 5
    mean, worst = summary(errors)
    assert mean < 6.0
    assert worst < 15.0


def as_torchtitan_runs(row: Row, candidate: Candidate) -> Candidate:
    """What the tables leave to torchtitan: compiled except their first rows, FSDP, microbatches.

    Without a number torchtitan makes as many microbatches as there are stages, two a rank where
    the schedule is interleaved.
    """
    eager = row["id"] in ("torchtitan/t1-0", "torchtitan/t3-0")
    stack = load_stack("torchtitan" if eager else "torchtitan-compiled")
    plan = candidate.plan
    changes: dict[str, object] = {"zero": 3}
    if plan.pp > 1:
        looped = "interleaved" in row["plan"]["schedule"]
        chunks = plan.pp * (2 if looped else 1)
        changes |= {
            "vpp": chunks // plan.pp,
            "num_microbatches": chunks,
            "mbs": int(row["plan"]["gbs"]) // (plan.dp * chunks),
            "schedule": "interleaved" if looped else "1f1b",
            "stages": default_counts(candidate.job.model.layers, chunks),
        }
    return Candidate(
        candidate.job.model_copy(update={"stack": stack}),
        plan.model_copy(update=changes), candidate.weight,
    )  # fmt: skip


def test_torchtitan_reserved() -> None:
    errors = {}
    for row, candidate in measured_rows("torchtitan"):
        found = ranks_of(as_torchtitan_runs(row, candidate))
        peak = max(f.reserved for f in found)
        errors[row["id"]] = peak / GIB / row["measured"]["peak_mem_gb"] - 1
    assert len(errors) == 18
    mean, worst = summary(errors)
    assert mean < 8.0
    assert worst < 12.0


def test_megatron_arguments_fully_stated() -> None:
    # Golden values of Megatron-LM's functional tests, read on the last rank. Their arguments
    # leave dropout and the native cross entropy at the defaults.
    stack = load_stack("megatron-core-unfused-ce")
    errors = {}
    for row, candidate in measured_rows("megatron-ci-large"):
        if "gpt3_7b" in row["id"]:
            job = candidate.job.model_copy(update={"stack": stack})
            last = ranks_of(Candidate(job, candidate.plan, 1.0))[-1]
            errors[row["id"]] = last.allocated / GIB / row["measured"]["peak_mem_gb"] - 1
    assert len(errors) == 3
    assert summary(errors)[0] < 4.0


@pytest.mark.parametrize("name", ["megatron-core-te", "torchtitan", "unknown"])
def test_doubt_covers_what_is_known(name: str) -> None:
    # a fifth of readings may lie outside the 80 % interval; unknown stacks doubt the most
    stack = load_stack(name)
    assert 0.01 < stack.memory_doubt_frac <= load_stack("unknown").memory_doubt_frac + 0.01


@pytest.mark.parametrize(
    "source",
    [
        "korthikanti", "korthikanti2", "megatron-sc21", "megatron-core-r080", "llama3-405b",
        "nemotron4-15b", "llm-foundry", "megatron-bridge", "dgxc", "nemo-and-primus",
    ],
)  # fmt: skip
def test_runs_that_ran_are_not_called_too_large(source: str) -> None:
    # Without a measured peak the run itself is the evidence. Where recompute or the microbatch is
    # not stated, the leanest reading counts. NeMo's fine-tuning of 70B on 16 devices keeps 16-bit
    # remainders instead of a master copy, which no profile does: two rows.
    seen = wrong = 0
    for row in load_shipped(source):
        reading = read_row(row)
        if reading.skipped or row.get("kind") == "per_layer" or row["measured"].get("oom"):
            continue
        docs = []
        for candidate in reading.candidates:
            stages = candidate.plan.stages
            assert stages is not None
            docs.append(memory_doc(candidate.job, candidate.plan, stages))
        seen += 1
        wrong += min(docs, key=lambda d: d.peak_bytes).fits == "no"
    assert seen > 0
    assert wrong <= (2 if source == "nemo-and-primus" else 0)
