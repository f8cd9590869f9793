"""YAML read with bounds: no tags, no deep nesting, no alias bombs, and the line of every key."""

from __future__ import annotations

from typing import Any

import yaml

from gangsaw.errors import InputError
from gangsaw.read.launch.document import Settings, Value
from gangsaw.read.launch.scalars import MAX_DEPTH, MAX_KEYS, scalar

MAX_ALIASES = 200
MAX_DOCUMENTS = 20
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, where: str) -> Settings:
    """Dotted settings of a YAML text; those of a second document stand under `document1`.

    Raises InputError when it is no YAML, is no mapping, nests deeper than MAX_DEPTH, or grows
    beyond MAX_KEYS values once its aliases are followed.
    """
    settings = Settings(where)
    nodes: list[yaml.Node] = []
    try:
        _scan(text, where)
        loader = _Loader(text)
        try:
            while loader.check_node() and len(nodes) < MAX_DOCUMENTS:
                nodes.append(loader.get_node())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {_short(error)}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where} is not usable YAML: {_short(error)}") from None
    if not nodes or not isinstance(nodes[0], yaml.MappingNode):
        raise InputError(f"{where}: a YAML mapping is needed")
    walk = _Walk(settings)
    for index, node in enumerate(nodes):
        if isinstance(node, yaml.MappingNode):
            walk.mapping(f"document{index}" if index else "", node, 0)
    return settings


def _scan(text: str, where: str) -> None:
    """Refuse what would grow, before any node is built: events are produced without recursion."""
    depth = aliases = 0
    for nodes, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        if aliases > MAX_ALIASES:
            raise InputError(f"{where}: more than {MAX_ALIASES} aliases; that is the limit")
        if nodes > 4 * MAX_KEYS:
            raise InputError(f"{where}: more than {MAX_KEYS:,} values; that is the limit")


class _Walk:
    """Follows nodes and aliases, counting every visit, so that shared nodes cannot multiply."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.visits = 0

    def _count(self, depth: int) -> None:
        self.visits += 1
        if self.visits > MAX_KEYS:
            raise InputError(
                f"{self.settings.where}: more than {MAX_KEYS:,} values once aliases are followed"
            )
        if depth > MAX_DEPTH:
            raise InputError(f"{self.settings.where}: nested deeper than {MAX_DEPTH} levels")

    def mapping(self, prefix: str, node: yaml.MappingNode, depth: int) -> None:
        """All leaves under `node`; merge keys first, so that own keys win."""
        own = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.settings.skip(key_node.start_mark.line + 1, "a key that is no scalar")
            elif key_node.value == "<<":
                self._merge(prefix, value_node, depth)
            else:
                own.append((key_node, value_node))
        for key_node, value_node in own:
            self._count(depth)
            key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
            if isinstance(value_node, yaml.MappingNode):
                self.mapping(key, value_node, depth + 1)
            elif isinstance(value_node, yaml.SequenceNode) and any(
                isinstance(item, yaml.MappingNode) for item in value_node.value
            ):
                for index, item in enumerate(value_node.value):
                    if isinstance(item, yaml.MappingNode):
                        self.mapping(f"{key}.{index}", item, depth + 1)
            else:
                line = key_node.start_mark.line + 1
                self.settings.put(key, self._value(value_node, depth + 1), line)

    def _merge(self, prefix: str, node: yaml.Node, depth: int) -> None:
        self._count(depth)
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in parts:
            if isinstance(part, yaml.MappingNode):
                self.mapping(prefix, part, depth + 1)

    def _value(self, node: yaml.Node, depth: int) -> Value:
        self._count(depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            self.settings.skip(node.start_mark.line + 1, "a mapping inside a list")
            return None
        text = str(node.value)
        return text if getattr(node, "style", None) in ("'", '"', "|", ">") else scalar(text)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}..."
