"""The rules as data: who they belong to, from which release to which, and where they come from."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Document

Severity = Literal["error", "wrong-model", "waste"]
FILES = ("megatron", "bridge", "torchtitan", "deepspeed", "other", "model", "general", "waste")


class Rule(Document):
    """One rule. `when` is the condition of a fault, in the language of `expressions`."""

    code: str
    framework: tuple[str, ...]
    since: str = ""
    until: str = Field("", description="the last release in which the rule holds")
    severity: Severity
    at: str = Field(description="the fact or key whose place is shown")
    when: str
    message: str
    rule: str = Field(description="the rule in plain words")
    legal: str = Field("", description="an expression that lists what is legal")
    repair: str
    change: dict[str, str] = Field(
        {}, description="facts after the repair, as expressions; None takes a statement back"
    )
    effect: str = Field("", description="without `change`: none, or why nothing is predicted")
    base: Literal["", "unknown", "runs"] = Field(
        "", description="unknown: what it does now is not modelled; runs: an error that starts"
    )  # fmt: skip
    alone: bool = Field(False, description="said only where no other wrong-model rule is")
    source: str = Field(description="file and release that it comes from")

    def applies(self, framework: str, version: str) -> bool:
        """Whether the rule belongs to a framework and a release (unknown: the newest)."""
        # ms-swift drives Megatron Core with defaults of its own, as verl does.
        name = "verl" if framework == "ms-swift" else framework
        if "any" not in self.framework and name not in self.framework:
            return False
        held = numbers(version)
        if not held:
            return not self.until
        if self.since and held < numbers(self.since):
            return False
        last = numbers(self.until)
        return not (last and held[: len(last)] > last)


def numbers(version: str) -> tuple[int, ...]:
    """`core_r0.12.1` -> (0, 12, 1); () where there is no number."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, by file and order; codes are unique."""
    found: list[Rule] = []
    for name in FILES:
        path = files("gangsaw.doctor") / "rules" / f"{name}.toml"
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        base = table.get("base", {})
        found.extend(Rule.model_validate({**base, **row}) for row in table["rule"])
    return tuple(found)
