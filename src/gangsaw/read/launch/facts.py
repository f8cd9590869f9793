"""From a framework's words to gangsaw's: vocabularies, facts with their origin, model names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from gangsaw.read.launch.document import Assumed, Framework, Origin, Settings, Stated, Value
from gangsaw.read.models import find_name


class Fact(NamedTuple):
    """A value by gangsaw's name, where it stands and whether the file states it."""

    value: Value
    where: str
    origin: Origin


class Vocabulary(NamedTuple):
    """A framework's keys by gangsaw's names, keys without bearing, and defaults of a release."""

    framework: str
    release: str
    facts: dict[str, str]
    ignored: tuple[re.Pattern[str], ...]
    defaults: dict[str, Value]

    def means(self, key: str) -> str | None:
        """The fact that `key` states, with its constant (`tied=false`); "" without bearing."""
        found = self.facts.get(key)
        if found is not None:
            return found
        if any(pattern.search(key) for pattern in self.ignored):
            return ""
        return None


@cache
def _toml(name: str) -> dict[str, Any]:
    text = (files("gangsaw.read.launch") / "vocabulary" / name).read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def vocabulary(framework: Framework) -> Vocabulary:
    """The vocabulary of a framework; Megatron's serves its relatives too."""
    name = {"megatron-bridge": "megatron", "nemo": "megatron", "megatron-lm": "megatron",
            "verl": "megatron", "ms-swift": "megatron"}.get(framework, framework)  # fmt: skip
    if name in ("nanotron", "gpt-neox", "llama-factory", "axolotl"):
        tables = _toml("yaml.toml")
        words = {key: value for key, value in tables[name].items() if key != "release"}
        if name != "nanotron":
            words = {**_toml("deepspeed.toml")["facts"], **words}
        release = tables[name]["release"]
        ignored, defaults = tables[f"{name}-ignored"], tables[f"{name}-defaults"]
    else:
        tables = _toml(f"{name}.toml")
        words = {**tables["facts"], **tables.get("trainer", {})}
        release, ignored, defaults = tables["release"], tables["ignored"], tables["defaults"]
    patterns = tuple(re.compile(pattern) for pattern in ignored["patterns"])
    return Vocabulary(name, release, words, patterns, defaults)


@cache
def _names() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(row["pattern"]), str(row["model"])) for row in _toml("names.toml")["name"]
    )


def catalog_name(text: str) -> str:
    """The catalog's name of the model that `text` names, "" when it names none that is known."""
    tail = text[-300:].rstrip("/").rsplit("/", 1)[-1]
    exact = find_name(tail) if len(tail) >= 4 else None
    if exact:
        return exact
    plain = re.sub(r"[^a-z0-9.]+", "-", text[-300:].lower()).strip("-")
    if re.search(r"debug-?model|\btoy\b|\btiny\b|\bsmoke\b", plain):
        return ""
    for pattern, name in _names():
        if pattern.search(plain):
            return name
    return ""


class Facts:
    """What is known of a launch file by gangsaw's names."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held: dict[str, Fact] = {}
        self.assumed: list[Assumed] = []
        self.missing: list[str] = []
        self.stated: list[Stated] = []

    def take(self, words: Vocabulary, key_of: Callable[[str], str] = lambda key: key) -> None:
        """Translate all settings; keys that the vocabulary does not know are listed as unread."""
        for item in self.settings:
            key = key_of(item.key)
            meaning = words.means(key)
            where = self.settings.at(item.line)
            if meaning is None:
                self.settings.skip(item.line, f"{item.key} = {_short(item.value)}")
                self.stated.append(Stated(key=key, value=item.value, where=where))
                continue
            name, _, constant = meaning.partition("=")
            value = item.value
            if constant and name:
                if value in (False, None):
                    continue
                value = {"true": True, "false": False}.get(constant, constant)
            self.stated.append(Stated(key=key, value=item.value, where=where, fact=name))
            if name:
                self.state(name, value, where)

    def state(self, name: str, value: Value, where: str) -> None:
        """A fact that the file states."""
        self.held[name] = Fact(value, where, "stated")

    def derive(self, name: str, value: Value, where: str = "") -> None:
        """A fact that follows from others; it never replaces a stated one."""
        if name not in self.held or self.held[name].origin != "stated":
            self.held[name] = Fact(value, where, "derived")

    def assume(self, name: str, value: Value, source: str) -> None:
        """A default; it never replaces anything, and it is listed."""
        if name not in self.held:
            self.held[name] = Fact(value, "", "assumed")
            self.assumed.append(Assumed(fact=name, value=value, source=source))

    def defaults(self, words: Vocabulary) -> None:
        """All defaults of a vocabulary's release."""
        for name, value in words.defaults.items():
            self.assume(name, value, f"default of {words.framework} {words.release}")

    def get(self, name: str) -> Value:
        """Value of a fact, None when it is not known."""
        fact = self.held.get(name)
        return None if fact is None else fact.value

    def whole(self, name: str) -> int | None:
        """A fact as a whole number."""
        value = self.get(name)
        if isinstance(value, bool):
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            return int(value)
        if isinstance(value, int) and abs(value) < 10**15:
            return value
        return None

    def flag(self, name: str) -> bool:
        """A fact as a switch."""
        value = self.get(name)
        if isinstance(value, str):
            return value.lower() in ("true", "1", "yes", "on", "auto")
        return bool(value)

    def is_stated(self, name: str) -> bool:
        """Whether the file states the fact."""
        fact = self.held.get(name)
        return fact is not None and fact.origin == "stated"

    def lack(self, reason: str) -> None:
        """Why a document cannot be made."""
        if reason not in self.missing:
            self.missing.append(reason)


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
