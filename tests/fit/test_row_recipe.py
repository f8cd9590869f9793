"""What a row's recipe sets: by release, model and device, and never over the row's own words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gangsaw.fit.row_recipe import DISPATCHERS, GRAPHED_FRAC, completed, recipes, with_facts
from gangsaw.fit.rows import load_shipped, read_row
from gangsaw.spec import StackTime

ROW: dict[str, Any] = next(r for r in load_shipped("megatron-bridge") if "26.02.01-444a" in r["id"])


def changed(**parts: dict[str, Any]) -> dict[str, Any]:
    row = copy.deepcopy(ROW)
    for part, values in parts.items():
        row[part] |= values
    return row


@pytest.mark.parametrize(
    ("release", "device", "want"),
    [
        ("25.09", "b200", ("alltoall", "full")),
        ("26.02", "b200", (None, None)),
        ("26.02.01", "b200", ("hybridep", "parts")),
        ("26.10", "b200", ("hybridep", "parts")),
        ("26.02", "gb200", ("hybridep", "parts")),
        ("26.02.01", "h100-sxm", ("hybridep", None)),
        ("26.02.01", "mi300x", (None, None)),
    ],
)
def test_release_and_device_name_the_recipe(
    release: str, device: str, want: tuple[str | None, str | None]
) -> None:
    row = changed(
        plan={"framework": f"Megatron-Bridge (NeMo {release})"}, hardware={"device": device}
    )
    assumed: list[str] = []
    plan = completed(row, assumed)["plan"]
    assert (plan.get("dispatcher"), plan.get("graphs")) == want
    assert len(assumed) == 1 and "grad_bytes 2" in assumed[0]


def test_own_words_win_and_are_not_reported() -> None:
    assumed: list[str] = []
    row = changed(plan={"dispatcher": "alltoall", "graphs": "none", "grad_bytes": 4})
    assert completed(row, assumed) is row
    assert assumed == []


def test_reading_says_what_came_from_the_recipe() -> None:
    assumed = " ".join(read_row(ROW).assumed)
    assert "of the recipe: dispatcher hybridep, graphs parts" in assumed


def test_deepseek_layout_has_all_layers_and_its_module_for_more_tokens() -> None:
    row = next(r for r in load_shipped("megatron-bridge") if "26.04-328a" in r["id"])
    candidate = read_row(row).candidates[0]
    assert candidate.plan.stages == (4,) * 15 + (1,)
    assert candidate.job.model.mtp is not None and candidate.job.model.mtp.layers == 1


def test_every_recipe_is_well_formed() -> None:
    keys = {
        "framework", "since", "until", "model", "devices", "dispatcher", "graphs", "ep_overlap",
        "mtp_layers", "stages", "grad_bytes", "source",
    }  # fmt: skip
    for recipe in recipes():
        assert set(recipe) <= keys and recipe["source"]
        assert recipe.get("dispatcher", "alltoall") in DISPATCHERS
        assert recipe.get("graphs", "none") in GRAPHED_FRAC
        for chunks, layers in recipe.get("stages", {}).items():
            assert len(layers) == int(chunks) and sum(layers) == 61


def test_facts_change_the_stack() -> None:
    time = StackTime(moe_permute_factor=4.0, ep_exposed_frac=0.9)
    row = changed(plan={"dispatcher": "deepep", "graphs": "full", "ep_overlap": True})
    assert read_row(row).candidates[0].job.stack.memory.grad_bytes == 2.0
    found = with_facts(time, row["plan"])
    assert found.ep_once_a_node and found.ep_paired and found.graphed_frac == 1.0
    assert found.moe_permute_factor < time.moe_permute_factor
    assert found.ep_exposed_frac < time.ep_exposed_frac
    plain = changed()
    assert with_facts(time, plain["plan"]) is time
