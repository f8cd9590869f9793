"""What the recipe behind a row sets, where the row names only its release, model and device."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from gangsaw.fit.row_model import whole
from gangsaw.spec import StackTime

Row = Mapping[str, Any]

GRAPHED_FRAC = {"none": 0.0, "parts": 0.5, "full": 1.0}
"""Share of a layer's launches that graphs take: attention, norms, router and what prepares the
dispatch are about half of a routed layer's, the experts' products the other half."""
HIDDEN_EP = 0.2
"""Exposed share of the exchange of experts that runs under another microbatch's compute."""
DISPATCHERS = {"alltoall": (False, 1.0), "deepep": (True, 0.6), "hybridep": (True, 0.4)}
"""Whether a node receives each routed token once, and the share of an all-to-all's passes over the
routed rows: eight (permute, the collective's own copies, sort by expert, pad and back), five where
the exchange reads and writes the tokens themselves, three where it sorts them too."""
PLAN_KEYS = ("dispatcher", "graphs", "ep_overlap", "grad_bytes")
_RELEASE = re.compile(r"nemo\D{0,12}(\d\d\.\d\d(?:\.\d\d)?)")


@lru_cache(maxsize=1)
def recipes() -> tuple[dict[str, Any], ...]:
    """The published recipes of `catalog/recipes.toml`."""
    text = resources.files("gangsaw.catalog").joinpath("recipes.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["recipe"])


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _recipe(row: Row) -> Mapping[str, Any]:
    """What the published recipes set for the row's release, model and device; the first counts."""
    text = str(row["plan"].get("framework", "")).lower()
    found = _RELEASE.search(text)
    if found is None:
        return {}
    release = _release(found.group(1))
    name = re.sub(r"[^a-z0-9]", "", str(row["model"].get("name", "")).lower())
    device = str(row["hardware"].get("device", "")).lower()
    facts: dict[str, Any] = {}
    for recipe in recipes():
        if recipe["framework"] not in text or not name.startswith(recipe.get("model", "")):
            continue
        since, until = recipe.get("since"), recipe.get("until")
        if (since and release < _release(since)) or (until and release > _release(until)):
            continue
        if device.startswith(tuple(recipe.get("devices", [""]))):
            facts = {**recipe, **facts}
    return facts


def completed(row: Row, assumed: list[str]) -> Row:
    """The row with what its recipe sets and it does not state itself; `assumed` gets a line."""
    recipe = _recipe(row)
    plan = {k: recipe[k] for k in PLAN_KEYS if k in recipe and row["plan"].get(k) is None}
    stages = recipe.get("stages", {}).get(str(_chunks(row)))
    if stages and row["plan"].get("stages") is None:
        plan["stages"] = stages
    model = {k: recipe[k] for k in ("mtp_layers",) if k in recipe and row["model"].get(k) is None}
    if not plan and not model:
        return row
    said = ", ".join(f"{k} {v}" for k, v in (plan | model).items())
    assumed.append(f"of the recipe: {said}")
    return {**row, "plan": {**row["plan"], **plan}, "model": {**row["model"], **model}}


def _chunks(row: Row) -> int:
    plan = row["plan"]
    return max(1, whole(plan.get("pp") or 1)) * max(1, whole(plan.get("vpp") or 1))


def with_facts(stack: StackTime, plan: Mapping[str, Any]) -> StackTime:
    """The time entries under the `dispatcher`, `graphs` and `ep_overlap` that are stated."""
    change: dict[str, Any] = {}
    dispatcher, graphs = str(plan.get("dispatcher")), str(plan.get("graphs"))
    if dispatcher in DISPATCHERS:
        once, share = DISPATCHERS[dispatcher]
        change["ep_once_a_node"] = once
        change["moe_permute_factor"] = share * stack.moe_permute_factor
    if graphs in GRAPHED_FRAC:
        change["graphed_frac"] = GRAPHED_FRAC[graphs]
    if plan.get("ep_overlap") is True:
        change |= {"ep_paired": True, "ep_exposed_frac": HIDDEN_EP}
    return stack.model_copy(update=change) if change else stack
