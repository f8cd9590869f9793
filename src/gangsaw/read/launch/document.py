"""LaunchFile: what a launch file of some framework states, and what it leaves to defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr
from typing_extensions import TypeAliasType

from gangsaw.spec.base import Document
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

Scalar = bool | int | float | str | None
Value = TypeAliasType("Value", "Scalar | list[Value]")
Framework = Literal[
    "megatron-lm", "megatron-bridge", "nemo", "torchtitan", "deepspeed", "nanotron", "gpt-neox",
    "llama-factory", "axolotl", "verl", "ms-swift", "gangsaw", "slurm",
]  # fmt: skip
Origin = Literal["stated", "assumed", "derived"]


class Setting(NamedTuple):
    """One key of a launch file as it stands there; `value` is None where it was not evaluated."""

    key: str
    value: Value
    line: int


class Settings:
    """Everything that a reader took from a file, in its framework's own words."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.items: dict[str, Setting] = {}
        self.unread: list[str] = []
        self.has_deepspeed = False
        self.env: dict[str, Setting] = {}
        self.devices: list[str] = []
        self.names: list[str] = []
        """Texts that may name the model: paths, repositories, classes, the file itself."""
        self.base = ""
        """A function of another file whose result the recipe starts from."""

    def put(self, key: str, value: Value, line: int) -> None:
        """State `key`; a later statement wins, as in every framework read here."""
        self.items[key] = Setting(key, value, line)

    def add_deepspeed(self, inner: Settings, offset: int = 0) -> None:
        """Keys of a DeepSpeed configuration beside own arguments, which keep their names."""
        self.has_deepspeed = True
        for item in inner:
            key = f"ds.{item.key}" if item.key in self.items else item.key
            self.put(key, item.value, item.line + offset)

    def copy(self) -> Settings:
        """The same statements, to be translated again."""
        twin = Settings(self.where)
        twin.items, twin.env = dict(self.items), dict(self.env)
        twin.unread, twin.devices = list(self.unread), list(self.devices)
        twin.names, twin.has_deepspeed = list(self.names), self.has_deepspeed
        twin.base = self.base
        return twin

    def get(self, key: str) -> Value:
        """Value of `key`, None when it is not there."""
        item = self.items.get(key)
        return None if item is None else item.value

    def at(self, line: int) -> str:
        """`file:line` for messages."""
        return f"{self.where}:{line}" if line > 0 else self.where

    def skip(self, line: int, what: str) -> None:
        """List something that was seen and not read."""
        text = " ".join(what.split())
        text = text if len(text) <= 160 else f"{text[:157]}..."
        entry = f"{self.at(line)}: {text}"
        if entry not in self.unread and len(self.unread) < 500:
            self.unread.append(entry)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.items.values())


class Stated(Document):
    """A key that the file states, in the framework's own spelling."""

    key: str
    value: Value
    where: str
    fact: str = Field("", description="gangsaw's name for it; empty: no bearing on the plan")


class Assumed(Document):
    """A value that the file leaves to a default, and whose default it is."""

    fact: str
    value: Value
    source: str


class LaunchFile(Document):
    """A launch file read: documents as far as they are stated, and everything else by name."""

    path: str
    framework: Framework
    version: str = Field("", description="of the framework, where the file states it")
    stated: tuple[Stated, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    unread: tuple[str, ...] = ()
    facts: dict[str, Value] = Field({}, description="by gangsaw's names, stated or assumed")
    wheres: dict[str, str] = Field({}, description="file:line of each stated fact")
    devices: tuple[str, ...] = Field((), description="types of device that the file asks for")
    env: dict[str, str] = Field({}, description="variables that the file sets")
    base: str = Field("", description="function of another file that the recipe starts from")
    model_name: str = ""
    model: ModelSpec | None = None
    recipe: Recipe | None = None
    plan: Plan | None = None
    missing: tuple[str, ...] = Field((), description="why a document could not be made")
    _settings: Settings | None = PrivateAttr(None)

    @property
    def flags(self) -> dict[str, Value]:
        """Stated keys in the framework's spelling."""
        return {item.key: item.value for item in self.stated}

    def where(self, name: str) -> str:
        """Where a fact or a key stands: `file:line`, else the file."""
        if name in self.wheres:
            return self.wheres[name]
        for item in self.stated:
            if item.key == name:
                return item.where
        return self.path
