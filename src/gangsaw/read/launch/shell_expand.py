"""Expansion of shell words: variables, arrays, defaults, patterns and arithmetic.

A text that depends on something not in the file (a command's output, an argument, a variable
that nobody set) holds the mark UNKNOWN, so that it never passes for a value.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable

from gangsaw.errors import InputError
from gangsaw.read.launch.shell_lex import Lexer, Part, Word

UNKNOWN = "\ue000"
MAX_EXPANDED = 2_000_000
MAX_DEPTH = 30

_PARAM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9-])(?:\[([^\]]{0,200})\])?(.*)", re.DOTALL)
_INT_OPS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.LShift: lambda a, b: a << min(b, 60), ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class Scope:
    """Variables of a script. Arrays are lists; a plain variable is a list of one."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.names: dict[str, list[str]] = {}
        self.budget = MAX_EXPANDED
        self.depth = 0
        self.unset_is_empty = False
        """In conditions: a variable that nobody set is empty, as it is for `${X:-default}`."""
        self.missing: set[str] = set()

    def spend(self, text: str) -> str:
        """Count expanded characters, so that doubling a variable ends in an error."""
        self.budget -= len(text) + 1
        if self.budget < 0:
            raise InputError(
                f"{self.where}: variables expand to more than {MAX_EXPANDED:,} characters"
            )
        return text

    def fields(self, word: Word) -> list[str]:
        """The words that `word` becomes: unquoted expansions split at blanks."""
        current: str | None = None
        done: list[str] = []
        for part in word.parts:
            if part.kind == "text":
                current = (current or "") + part.text
                continue
            values = self._part(part)
            if part.quoted:
                whole = _is_array(part.text)
                pieces = values if whole else [" ".join(values)]
            else:
                pieces = [field for value in values for field in value.split()]
                if not pieces:
                    continue
            if not pieces:
                continue
            current = (current or "") + pieces[0]
            for piece in pieces[1:]:
                done.append(current)
                current = piece
        if current is not None:
            done.append(current)
        return [self.spend(field) for field in done]

    def text(self, word: Word) -> str:
        """`word` as one text, as in an assignment."""
        pieces = []
        for part in word.parts:
            pieces.append(part.text if part.kind == "text" else " ".join(self._part(part)))
        return self.spend("".join(pieces))

    def _part(self, part: Part) -> list[str]:
        if part.kind == "arith":
            value = self.arith(part.text)
            return [UNKNOWN if value is None else str(value)]
        if part.kind == "command":
            return [self._command(part.text)]
        return self.param(part.text)

    def _command(self, text: str) -> str:
        """Nothing is run; `expr` with numbers is arithmetic, everything else is unknown."""
        stripped = text.strip()
        if stripped.startswith("expr "):
            value = self.arith(stripped[5:].replace("\\*", "*"))
            return UNKNOWN if value is None else str(value)
        return UNKNOWN

    def param(self, text: str) -> list[str]:
        """What `${text}` becomes."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.depth -= 1
            return [UNKNOWN]
        try:
            return self._param(text)
        finally:
            self.depth -= 1

    def _param(self, text: str) -> list[str]:
        if text.startswith("#") and len(text) > 1:
            found = self.param(text[1:])
            known = UNKNOWN not in "".join(found)
            size = len(found) if _is_array(text) else len("".join(found))
            return [str(size) if known else UNKNOWN]
        if text.startswith("!"):
            name = "".join(self.param(text[1:])) if len(text) > 1 else UNKNOWN
            return [UNKNOWN] if UNKNOWN in name else self.param(name)
        match = _PARAM.fullmatch(text)
        if match is None:
            return [UNKNOWN]
        name, index, rest = match.groups()
        return self._operate(self._lookup(name, index), rest, name)

    def _lookup(self, name: str, index: str | None) -> list[str] | None:
        values = self.names.get(name)
        if values is None:
            return None
        if index in ("@", "*"):
            return values
        if index is not None:
            at = self.arith(index)
            if at is None:
                return [UNKNOWN]
            return [values[at]] if -len(values) <= at < len(values) else []
        return values[:1] if name not in ("@", "*") else values

    def _operate(self, values: list[str] | None, rest: str, name: str) -> list[str]:
        unset = values is None
        empty = unset or values == [] or values == [""]
        if rest.startswith(":") and rest[1:2] in ("-", "=", "+", "?"):
            unset, rest = empty, rest[1:]
        if rest[:1] in ("-", "=", "+", "?"):
            return self._default(values or [], unset, rest, name)
        if values is None:
            if self.unset_is_empty:
                return []
            self.missing.add(name)
            return [UNKNOWN]
        if not rest:
            return values
        return [_edit(value, self._nested(rest), self) for value in values]

    def _default(self, values: list[str], unset: bool, rest: str, name: str) -> list[str]:
        sign, other = rest[0], rest[1:]
        if sign == "+":
            return [] if unset else [self._nested(other)]
        if not unset:
            return values
        if sign == "?":
            return [UNKNOWN]
        value = self._nested(other)
        if sign == "=":
            self.names[name] = [value]
        return [value]

    def _nested(self, text: str) -> str:
        """Expansions inside a default or a pattern."""
        if not any(char in text for char in "$`\"'\\"):
            return text
        tokens = Lexer('"' + text.replace('"', "") + '"', self.where).run()
        return "".join(self.text(t) for t in tokens if isinstance(t, Word))

    def arith(self, text: str) -> int | None:
        """An integer expression; None when it depends on something unknown."""
        expanded = self._nested(text).strip() if "$" in text or "`" in text else text.strip()
        if UNKNOWN in expanded or len(expanded) > 500:
            return None
        source = expanded.replace("&&", " and ").replace("||", " or ").replace("/", "//")
        source = source.replace("////", "//")
        try:
            tree = ast.parse(source, mode="eval")
            return self._number(tree.body, 0)
        except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
            return None

    def _number(self, node: ast.expr, depth: int) -> int | None:
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        if isinstance(node, ast.Name):
            values = self.names.get(node.id, ["0"] if node.id in self.names else [])
            text = values[0].strip() if values else ""
            return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if isinstance(node, ast.UnaryOp):
            value = self._number(node.operand, depth + 1)
            if value is None:
                return None
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left = self._number(node.left, depth + 1)
            right = self._number(node.comparators[0], depth + 1)
            compare = _COMPARE.get(type(node.ops[0]))
            if left is None or right is None or compare is None:
                return None
            return int(compare(left, right))
        if isinstance(node, ast.BinOp):
            return self._binary(node, depth)
        return None

    def _binary(self, node: ast.BinOp, depth: int) -> int | None:
        left, right = self._number(node.left, depth + 1), self._number(node.right, depth + 1)
        if left is None or right is None:
            return None
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            quotient = int(left / right) if right and abs(left) < 2**53 else left // right
            result = quotient if isinstance(node.op, ast.FloorDiv) else left - quotient * right
        elif isinstance(node.op, ast.Pow):
            result = left**right if 0 <= right <= 62 and abs(left) < 1000 else 0
        elif type(node.op) in _INT_OPS:
            result = _INT_OPS[type(node.op)](left, right)
        else:
            return None
        return result if abs(result) < 2**63 else None


def _is_array(text: str) -> bool:
    return text in ("@", "*") or text.endswith(("[@]", "[*]"))


def _edit(value: str, rest: str, scope: Scope) -> str:
    """`%`, `#`, `/`, `^`, `,` and `:offset:length` on a value."""
    if UNKNOWN in value or UNKNOWN in rest:
        return UNKNOWN
    if len(value) > 2000:
        return UNKNOWN
    if rest[0] in "%#":
        return _strip(value, rest)
    if rest[0] == "/":
        every = rest.startswith("//")
        old, _, new = rest.lstrip("/").partition("/")
        return value.replace(old, new, -1 if every else 1) if old else value
    if rest in ("^^", "^"):
        return value.upper() if rest == "^^" else value[:1].upper() + value[1:]
    if rest in (",,", ","):
        return value.lower() if rest == ",," else value[:1].lower() + value[1:]
    if rest[0] == ":":
        offset, _, length = rest[1:].partition(":")
        start, size = scope.arith(offset), scope.arith(length) if length else len(value)
        if start is None or size is None:
            return UNKNOWN
        return value[start:][:size]
    return UNKNOWN


def _strip(value: str, rest: str) -> str:
    """Remove the shortest or longest prefix (`#`) or suffix (`%`) that matches a pattern."""
    sign = rest[0]
    longest = rest.startswith(sign * 2)
    pattern = rest[2 if longest else 1 :]
    size = len(value)
    cuts = range(size + 1) if longest != (sign == "#") else range(size, -1, -1)
    for cut in cuts:
        if sign == "%" and fnmatch.fnmatchcase(value[cut:], pattern):
            return value[:cut]
        if sign == "#" and fnmatch.fnmatchcase(value[:cut], pattern):
            return value[cut:]
    return value
