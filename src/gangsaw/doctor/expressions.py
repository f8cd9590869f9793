"""Conditions and texts of rules: a small language over facts, with a third truth value.

A rule is data, so its condition is text: names of facts, arithmetic, comparisons, `and`, `or`,
`not`, and the functions of `FUNCTIONS`. A name that is not known makes a comparison UNKNOWN, and
a rule whose condition is UNKNOWN says nothing. Only shipped rules are evaluated, never user text.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

from gangsaw.cost.layout import default_counts
from gangsaw.read.launch.stages import layout_text


class _Unknown:
    """The value of what is not known; every operation on it is unknown again."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()
Answer: TypeAlias = Any
"""A number, text, list, switch or UNKNOWN: rules are data, their values have no one type."""

Names = Mapping[str, Answer]


def divisors(value: int, limit: int = 10**6) -> list[int]:
    """Divisors of a whole number up to `limit`, ascending."""
    n = int(value)
    low = [d for d in range(1, math.isqrt(max(n, 0)) + 1) if n % d == 0]
    return sorted(d for d in {*low, *(n // d for d in low)} if d <= limit)


def near_pp(layers: int, low: int = 1, high: int = 64) -> list[int]:
    """Pipeline degrees that divide the layers."""
    return [d for d in divisors(layers) if low <= d <= high]


def first_last(layers: int, pp: int) -> tuple[int, int] | None:
    """First and last stage that make the middle even, nearest to even stages; None for none.

    The ends may hold fewer layers than the middle, never more where that can be helped.
    """
    if pp == 2 and layers >= 2:
        return layers - layers // 2, layers // 2
    if pp < 3:
        return None
    best: tuple[float, int, int] | None = None
    for middle in range(1, layers // max(1, pp - 2) + 1):
        rest = layers - middle * (pp - 2)
        if rest < 2:
            break
        first, last = rest - rest // 2, rest // 2
        spread = max(first, last, middle) + 0.01 * (max(first, last) > middle)
        if best is None or spread < best[0]:
            best = (spread, first, last)
    return None if best is None else (best[1], best[2])


def first_last_pair(layers: int, pp: int) -> str:
    """`first_last` as text."""
    pair = first_last(layers, pp)
    return "none" if pair is None else f"first {pair[0]}, last {pair[1]}"


def first_of(layers: int, pp: int) -> int | None:
    """Layers of the first stage of `first_last`."""
    pair = first_last(layers, pp)
    return None if pair is None else pair[0]


def last_of(layers: int, pp: int) -> int | None:
    """Layers of the last stage of `first_last`."""
    pair = first_last(layers, pp)
    return None if pair is None else pair[1]


def nearest_divisor(total: int, wanted: int, of: int = 1) -> int:
    """The divisor of `total` that is a multiple of `of` and nearest to `wanted`, lower in a tie.

    Raises ValueError where there is none.
    """
    legal = [d for d in divisors(total) if d % of == 0]
    if not legal:
        raise ValueError("no divisor")
    return min(legal, key=lambda d: (abs(d - wanted), d))


def even_layout(layers: int, chunks: int) -> str:
    """A Megatron layout of `layers` over `chunks` stages, as even as they go, ends lightest."""
    return layout_text(default_counts(layers, chunks))


def multiples(value: int, of: int) -> bool:
    """Whether value is a multiple of `of`."""
    return int(value) % int(of) == 0


FUNCTIONS: dict[str, Callable[..., Answer]] = {
    "divisors": divisors, "near_pp": near_pp, "first_last_pair": first_last_pair,
    "first_of": first_of, "last_of": last_of, "nearest_divisor": nearest_divisor,
    "even_layout": even_layout, "gcd": math.gcd,
    "multiples": multiples, "min": min, "max": max, "abs": abs, "len": len, "sum": sum,
    "int": int, "ceil": math.ceil, "round": round, "str": str, "lower": lambda x: str(x).lower(),
}  # fmt: skip

_BINARY: dict[type[ast.operator], Callable[[Answer, Answer], Answer]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Answer, Answer], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


@cache
def parsed(text: str) -> ast.expr:
    """The syntax tree of an expression."""
    return ast.parse(text.strip(), mode="eval").body


class Evaluator:
    """Evaluates expressions over one launch file's facts and raw flags."""

    def __init__(self, names: Names, flags: Names, stated: frozenset[str]) -> None:
        self.names = names
        self.flags = flags
        self.stated = stated

    def value(self, text: str) -> Answer:
        """Value of an expression; UNKNOWN where a fact that it needs is not known."""
        return self._value(parsed(text))

    def holds(self, text: str) -> bool:
        """Whether a condition is true; unknown is not true."""
        value = self.value(text)
        return value is not UNKNOWN and bool(value)

    def fill(self, text: str) -> str:
        """A text with its `{expression}` parts filled in."""
        return re.sub(r"\{([^{}]+)\}", lambda m: _shown(self.value(m.group(1))), text)

    def _value(self, node: ast.expr) -> Answer:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            value = self.names.get(node.id)
            return UNKNOWN if value is None else value
        if isinstance(node, ast.BoolOp):
            return self._bool(node)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand)
            if value is UNKNOWN:
                return UNKNOWN
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left), self._value(node.right)
            return self._guard(_BINARY[type(node.op)], left, right)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            test = self._value(node.test)
            if test is UNKNOWN:
                return UNKNOWN
            return self._value(node.body if test else node.orelse)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item) for item in node.elts]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args)
        raise ValueError(f"a rule cannot use {type(node).__name__}")

    def _guard(self, function: Callable[..., Answer], *args: Answer) -> Answer:
        """A function of known values; wrong types and division by zero are unknown."""
        if any(arg is UNKNOWN for arg in args):
            return UNKNOWN
        try:
            return function(*args)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError):
            return UNKNOWN

    def _bool(self, node: ast.BoolOp) -> Answer:
        """`and` and `or` where one decided side is enough."""
        is_and = isinstance(node.op, ast.And)
        unknown = False
        for part in node.values:
            value = self._value(part)
            if value is UNKNOWN:
                unknown = True
            elif bool(value) != is_and:
                return not is_and
        return UNKNOWN if unknown else is_and

    def _compare(self, node: ast.Compare) -> Answer:
        left = self._value(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node)
            result = self._guard(_COMPARE[type(op)], left, right)
            if result is UNKNOWN or not result:
                return result
            left = right
        return True

    def _call(self, name: str, args: list[ast.expr]) -> Answer:
        if name in ("known", "stated", "flag", "missing"):
            key = args[0].value if isinstance(args[0], ast.Constant) else ""
            if name == "known":
                return self.names.get(str(key)) is not None
            if name == "missing":
                return self.names.get(str(key)) is None
            if name == "stated":
                return str(key) in self.stated
            return self.flags.get(str(key))
        return self._guard(FUNCTIONS[name], *[self._value(arg) for arg in args])


def _shown(value: Answer) -> str:
    """A value as a message shows it."""
    if value is UNKNOWN:
        return "?"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, list):
        items = [_shown(item) for item in value]
        return ", ".join(items if len(items) <= 12 else [*items[:11], items[-1]]) or "none"
    return str(value)
