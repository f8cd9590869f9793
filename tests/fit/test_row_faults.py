"""Figures that no run can have: the row is skipped, with the key, the value and what is legal."""

import copy
import json

import pytest

from gangsaw.cli.main import run
from gangsaw.fit.row_faults import fault_of
from gangsaw.fit.rows import load_shipped, read_row, shipped_sources

ROW = {
    "id": "a",
    "source": "mine",
    "model": {
        "name": "Llama-3.1-8B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn": 14336, "vocab": 128256, "seq_len": 4096, "gated_mlp": True, "untied": True,
    },
    "hardware": {"device": "H100 SXM", "devices": 8, "per_node": 8},
    "plan": {"tp": 2, "pp": 1, "dp": 4, "mbs": 1, "gbs": 64, "zero": 1, "recompute": "none",
             "precision": "bf16"},
    "measured": {"step_time_s": 5.0, "basis": "reported"},
    "kind": "step",
    "quality": "A",
}  # fmt: skip


def changed(part, key, value):
    row = copy.deepcopy(ROW)
    if key:
        row[part][key] = value
    else:
        row[part] = value
    return row


def test_no_published_row_has_such_a_figure():
    rows = [row for name in shipped_sources() for row in load_shipped(name)]
    assert len(rows) > 1000
    assert [row["id"] for row in rows if fault_of(row)] == []


def test_a_sound_row_is_read():
    assert fault_of(ROW) is None
    assert read_row(ROW).skipped is None


def test_zero_stands_for_what_is_not_used():
    assert fault_of(changed("model", "experts", 0)) is None
    assert fault_of(changed("plan", "ep", 0)) is None


@pytest.mark.parametrize(
    ("part", "key", "value", "legal"),
    [
        ("measured", "step_time_s", 1e30, "seconds"),
        ("measured", "step_time_s", -1, "seconds"),
        ("measured", "step_time_s", 0, "seconds"),
        ("measured", "step_time_s", "fast", "seconds"),
        ("measured", "step_time_s", True, "seconds"),
        ("measured", "", 3, "an object"),
        ("plan", "", "x", "an object"),
        ("plan", "tp", 0, "whole numbers from 1"),
        ("plan", "tp", 3, "divisors"),
        ("plan", "mbs", 0.5, "whole numbers from 0"),
        ("plan", "gbs", 1e30, "whole numbers"),
        ("plan", "dp", "many", "whole numbers"),
        ("model", "layers", -3, "whole numbers from 1"),
        ("hardware", "devices", float("inf"), "whole numbers from 1"),
        ("measured", "peak_mem_gb", 6.9e10, "in GB"),
        ("measured", "peak_mem_gb", 69_000, "in GB"),
    ],
)
def test_a_figure_that_cannot_be_is_named(part, key, value, legal):
    why = read_row(changed(part, key, value)).skipped
    assert why is not None
    assert f"{part}.{key}=".replace(".=", "=") in why and legal in why
    assert "\n" not in why


def test_validate_and_calibrate_skip_it_and_say_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    bad = changed("measured", "step_time_s", 1e30)
    del bad["id"]
    path.write_text("\n".join(json.dumps(row) for row in (ROW, bad)))
    said = "line 2: measured.step_time_s=1e+30 is no time of a step"
    for verb in ("validate", "calibrate"):
        found = run([verb, str(path)])
        assert found.code == 0, found.err
        assert said in found.out


def test_nothing_usable_says_what_a_row_needs(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"model": {}}\n')
    found = run(["calibrate", str(path)])
    assert found.code == 2
    assert "line 1" in found.err and "measured.step_time_s" in found.err
