"""Peaks of the kind a row measured, and what failed runs teach about a site's memory."""

import copy

import numpy as np
import pytest
from test_rows import ROW, row

from gangsaw.fit.choose import with_memory
from gangsaw.fit.memory_rows import (
    RowMemory,
    learn_offset,
    measured_bytes,
    row_memory,
)
from gangsaw.fit.row_stack import stacks_of
from gangsaw.fit.rows import load_shipped, read_row


def test_unit_decides_the_bytes():
    gib = row(measured__peak_mem_gb=40, measured__mem_unit="GiB (nvidia-smi, integer)")
    assert measured_bytes(gib) == 40 * 2**30
    assert measured_bytes(row(measured__peak_mem_gb=40)) == 40e9
    assert measured_bytes(row(measured__peak_mem_gb=None)) is None
    assert measured_bytes({**ROW, "measured": None}) is None


def test_kinds_of_peak_are_ordered():
    found = {}
    for kind in ("allocated", "reserved", "device"):
        r = copy.deepcopy(load_shipped("simumax-b200")[0])
        r["measured"]["peak_kind"] = kind
        found[kind] = row_memory(read_row(r)).peak_bytes
    assert found["allocated"] < found["reserved"] < found["device"]


def test_first_and_last_stage_alone_are_looked_at_where_the_row_says_so():
    r = row(plan__framework="Megatron-DeepSpeed", measured__peak_kind="device", plan__tp=1)
    everywhere = row_memory(read_row(r)).peak_bytes
    r["notes"] = "nvidia-smi max on first/last stage nodes"
    assert row_memory(read_row(r)).peak_bytes <= everywhere


def test_scores_are_kept_without_a_fused_kernel():
    by_kernel = {
        k: row_memory(read_row(row(plan__kernel=k, plan__flash_attention=None))).log_fill
        for k in ("torch", "megatron", "flash_attn2", "flash_attn2 + RMS kernel")
    }
    assert by_kernel["torch"] > by_kernel["megatron"] > by_kernel["flash_attn2"]
    assert by_kernel["flash_attn2"] > by_kernel["flash_attn2 + RMS kernel"]
    for stack, _ in stacks_of(row(plan__kernel="torch", plan__flash_attention=None), []):
        assert stack.memory.unfused_score_bytes > 0.0


def memory(log_fill):
    return RowMemory(80e9 * np.exp(log_fill), log_fill, 0.095, 80e9)


def test_offset_is_learned_from_fates_alone():
    rng = np.random.default_rng(1)
    fills = rng.uniform(-0.3, 0.3, 40)
    rows = [(memory(f), None, bool(f + 0.1 > 0.0)) for f in fills]
    found = learn_offset(rows)
    assert found.mean == pytest.approx(0.1, abs=0.05)
    assert found.sd < 0.04
    nothing = learn_offset([])
    assert nothing.mean == pytest.approx(0.0, abs=1e-9)
    assert nothing.sd == pytest.approx(0.08, rel=0.01)


def test_offset_is_learned_from_peaks_and_survives_a_wrong_one():
    good = [(memory(-0.4), memory(-0.4).peak_bytes * 1.06, False)] * 5
    assert learn_offset(good).mean == pytest.approx(np.log(1.06), abs=0.02)
    bad = [*good, (memory(-0.4), memory(-0.4).peak_bytes * 3.0, False)]
    assert learn_offset(bad).mean == pytest.approx(learn_offset(good).mean, abs=0.02)


def test_fates_turn_risky_into_certain():
    near = memory(0.06)
    assert near.fits() == "risky"
    assert near.fits(0.1, 0.02) == "no"
    assert near.fits(-0.15, 0.02) == "yes"


def test_memory_rows_come_after_three_by_time():
    margin = np.array([0.5, 0.01, 0.3, 0.02, 0.4, 0.6, 0.7])
    chosen = with_memory([5, 4, 6, 2, 0], margin, range(7), 6)
    assert chosen[:3] == [5, 4, 6]
    assert 1 in chosen and 3 in chosen
    assert len(set(chosen)) == 6
