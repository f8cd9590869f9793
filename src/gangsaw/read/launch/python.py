"""Python recipes followed through their syntax tree: literals, constructors, simple overrides.

Nothing is imported or run. What is not a literal, a name bound to one, arithmetic of numbers, a
constructor with keywords, or a function of the same file becomes Opaque and is listed.
"""

from __future__ import annotations

import ast
from typing import Union

from gangsaw.errors import InputError

MAX_STEPS = 100_000
MAX_DEPTH = 40
MAX_LEAVES = 5_000


class Opaque:
    """A value that the file does not hold, with the text that stands for it."""

    def __init__(self, text: str) -> None:
        self.text = text


class Record:
    """An object by the keywords it was made with and the attributes set on it later."""

    def __init__(self, maker: str, line: int) -> None:
        self.maker = maker
        self.line = line
        self.args: list[Held] = []
        self.fields: dict[str, tuple[Held, int]] = {}


Held = Union[None, bool, int, float, str, "list[Held]", Record, Opaque]


class Recipe:
    """One recipe: the object that a function returns, or what the module's own lines build."""

    def __init__(self, name: str, root: Held, line: int) -> None:
        self.name = name
        self.root = root
        self.line = line


class Module:
    """A Python file followed. `recipes` are its functions, then its own lines as `""`."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.steps = 0
        self.depth = 0
        self.unread: list[tuple[int, str]] = []
        self.tree = _parse(text, where)
        self.functions: dict[str, ast.FunctionDef] = {
            node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)
        }
        self.called: set[str] = set()
        self.imported = _imported(self.tree)
        self.globals: dict[str, Held] = {}
        self._body(self.tree.body, self.globals)

    def recipe(self, name: str) -> Recipe:
        """The recipe of function `name` with its defaults."""
        node = self.functions[name]
        root = self._call_function(node, [], {})
        return Recipe(name, root, node.lineno)

    def script(self) -> Recipe:
        """What the module's own lines leave behind, all names together."""
        root = Record("", 0)
        for key, value in self.globals.items():
            if isinstance(value, Record):
                root.fields[key] = (value, value.line)
            elif value is not None and not isinstance(value, Opaque):
                root.fields[key] = (value, 0)
        return Recipe("", root, 0)

    # -- statements -------------------------------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InputError(f"{self.where}: more than {MAX_STEPS:,} steps to follow")

    def _body(self, body: list[ast.stmt], names: dict[str, Held]) -> tuple[bool, Held]:
        """Follow statements; (True, value) once a return was met."""
        for node in body:
            self._step()
            done, value = self._statement(node, names)
            if done:
                return True, value
        return False, None

    def _statement(self, node: ast.stmt, names: dict[str, Held]) -> tuple[bool, Held]:
        if isinstance(node, ast.Return):
            return True, None if node.value is None else self._value(node.value, names)
        if isinstance(node, ast.Assign):
            value = self._value(node.value, names)
            for target in node.targets:
                self._store(target, value, names, node.lineno)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._store(node.target, self._value(node.value, names), names, node.lineno)
        elif isinstance(node, ast.AugAssign):
            read = ast.BinOp(left=_loaded(node.target), op=node.op, right=node.value)
            ast.copy_location(read, node)
            self._store(node.target, self._value(read, names), names, node.lineno)
        elif isinstance(node, ast.Expr):
            self._expression(node.value, names)
        elif isinstance(node, ast.If):
            return self._if(node, names)
        elif isinstance(node, (ast.With, ast.Try)):
            return self._body(node.body, names)
        elif isinstance(node, (ast.For, ast.While, ast.Match)):
            self.unread.append((node.lineno, f"a {type(node).__name__.lower()} statement"))
        return False, None

    def _if(self, node: ast.If, names: dict[str, Held]) -> tuple[bool, Held]:
        if _is_main(node.test):
            return self._body(node.body, names)
        test = self._value(node.test, names)
        if isinstance(test, (Opaque, Record)):
            self.unread.append((node.lineno, f"a condition on {_short(node.test)}"))
            return False, None
        return self._body(node.body if test else node.orelse, names)

    def _expression(self, node: ast.expr, names: dict[str, Held]) -> None:
        """A bare call: a function of this file is followed, anything else is listed."""
        if not isinstance(node, ast.Call):
            return
        value = self._value(node, names)
        if isinstance(value, Opaque) and not isinstance(node.func, ast.Name):
            self.unread.append((node.lineno, f"a call: {_short(node)}"))

    def _store(self, target: ast.expr, value: Held, names: dict[str, Held], line: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._owner(target.value, names, line)
            if isinstance(owner, Record):
                owner.fields[target.attr] = (value, line)
        elif isinstance(target, ast.Subscript):
            owner = self._owner(target.value, names, line)
            key = self._value(target.slice, names)
            if isinstance(owner, Record) and isinstance(key, str):
                owner.fields[key] = (value, line)
        elif isinstance(target, ast.Tuple) and isinstance(value, list):
            for part, item in zip(target.elts, value, strict=False):
                self._store(part, item, names, line)
        elif isinstance(target, ast.Tuple):
            for part in target.elts:
                self._store(part, Opaque(_short(part)), names, line)

    def _owner(self, node: ast.expr, names: dict[str, Held], line: int) -> Held:
        """The object an attribute is set on; made on the way where it was never built here."""
        if isinstance(node, ast.Name):
            held = names.get(node.id)
            if not isinstance(held, Record):
                maker = held.text if isinstance(held, Opaque) else ""
                held = names[node.id] = Record(maker, line)
            return held
        if isinstance(node, ast.Attribute):
            owner = self._owner(node.value, names, line)
            if not isinstance(owner, Record):
                return None
            child = owner.fields.get(node.attr, (None, line))[0]
            if not isinstance(child, Record):
                child = Record(child.text if isinstance(child, Opaque) else "", line)
                owner.fields[node.attr] = (child, line)
            return child
        return None

    # -- expressions ------------------------------------------------------------------------------

    def _value(self, node: ast.expr, names: dict[str, Held]) -> Held:
        self._step()
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                return Opaque("...")
            return self._evaluate(node, names)
        finally:
            self.depth -= 1

    def _evaluate(self, node: ast.expr, names: dict[str, Held]) -> Held:
        if isinstance(node, ast.Constant):
            value = node.value
            return value if isinstance(value, (bool, int, float, str)) or value is None else None
        if isinstance(node, ast.Name):
            return names.get(node.id, self.globals.get(node.id, Opaque(node.id)))
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, names)
            if isinstance(owner, Record) and node.attr in owner.fields:
                return owner.fields[node.attr][0]
            return Opaque(_short(node))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self._value(item, names) for item in node.elts[:MAX_LEAVES]]
        if isinstance(node, ast.Dict):
            return self._dict(node, names)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, names)
        if isinstance(node, ast.BinOp):
            return self._binary(node, names)
        if isinstance(node, ast.IfExp):
            test = self._value(node.test, names)
            if isinstance(test, (Opaque, Record)):
                return Opaque(_short(node))
            return self._value(node.body if test else node.orelse, names)
        if isinstance(node, ast.Compare):
            return self._compare(node, names)
        if isinstance(node, ast.BoolOp):
            return self._bool(node, names)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, names)
        return Opaque(_short(node))

    def _subscript(self, node: ast.Subscript, names: dict[str, Held]) -> Held:
        owner, key = self._value(node.value, names), self._value(node.slice, names)
        if isinstance(owner, Record) and isinstance(key, str) and key in owner.fields:
            return owner.fields[key][0]
        if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        return Opaque(_short(node))

    def _dict(self, node: ast.Dict, names: dict[str, Held]) -> Held:
        record = Record("dict", node.lineno)
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self._value(value_node, names)
            if key_node is None:
                if isinstance(value, Record):
                    record.fields.update(value.fields)
                continue
            key = self._value(key_node, names)
            if isinstance(key, str):
                record.fields[key] = (value, value_node.lineno)
        return record

    def _unary(self, node: ast.UnaryOp, names: dict[str, Held]) -> Held:
        value = self._value(node.operand, names)
        if isinstance(node.op, ast.Not) and not isinstance(value, (Opaque, Record)):
            return not value
        if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return -value if isinstance(node.op, ast.USub) else value
        return Opaque(_short(node))

    def _binary(self, node: ast.BinOp, names: dict[str, Held]) -> Held:
        left, right = self._value(node.left, names), self._value(node.right, names)
        if isinstance(left, list) and isinstance(node.op, (ast.Add, ast.Mult)):
            if isinstance(right, list) and isinstance(node.op, ast.Add):
                return (left + right)[:MAX_LEAVES]
            if isinstance(right, int) and not isinstance(right, bool):
                most = MAX_LEAVES // max(1, len(left)) + 1
                return (left * max(0, min(right, most)))[:MAX_LEAVES]
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            value = _number(left, node.op, right)
            if value is not None:
                return value
        return Opaque(_short(node))

    def _compare(self, node: ast.Compare, names: dict[str, Held]) -> Held:
        if len(node.ops) != 1:
            return Opaque(_short(node))
        left, right = self._value(node.left, names), self._value(node.comparators[0], names)
        if isinstance(left, (Opaque, Record)) or isinstance(right, (Opaque, Record)):
            return Opaque(_short(node))
        op = node.ops[0]
        if isinstance(op, (ast.Eq, ast.Is)):
            return left == right
        if isinstance(op, (ast.NotEq, ast.IsNot)):
            return left != right
        if isinstance(op, ast.In) and isinstance(right, list):
            return left in right
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if isinstance(op, (ast.Gt, ast.GtE)):
                return left > right or (isinstance(op, ast.GtE) and left == right)
            if isinstance(op, (ast.Lt, ast.LtE)):
                return left < right or (isinstance(op, ast.LtE) and left == right)
        return Opaque(_short(node))

    def _bool(self, node: ast.BoolOp, names: dict[str, Held]) -> Held:
        for part in node.values:
            value = self._value(part, names)
            if isinstance(value, (Opaque, Record)):
                return Opaque(_short(node))
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, names: dict[str, Held]) -> Held:
        args = [self._value(arg, names) for arg in node.args if not isinstance(arg, ast.Starred)]
        keywords: dict[str, tuple[Held, int]] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, names)
            if keyword.arg is not None:
                keywords[keyword.arg] = (value, keyword.value.lineno)
            elif isinstance(value, Record):
                keywords.update(value.fields)
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            self.called.add(node.func.id)
            return self._call_function(self.functions[node.func.id], args, keywords)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            return self._update(node.func, args, keywords, names)
        return self._construct(node, args, keywords, names)

    def _construct(
        self,
        node: ast.Call,
        args: list[Held],
        keywords: dict[str, tuple[Held, int]],
        names: dict[str, Held],
    ) -> Held:
        """A constructor or an unknown function, by its keywords; wrapping makers are seen through.

        `run.Partial(f, a=1)` and `run.Config(C, a=1)` become C with a=1.
        """
        record = Record(_short(node.func), node.lineno)
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value, names)
            if isinstance(owner, Record) and not owner.fields and owner.args:
                record.args.extend(owner.args)
        record.args.extend(args)
        record.fields.update(keywords)
        return record

    def _update(
        self,
        func: ast.Attribute,
        args: list[Held],
        keywords: dict[str, tuple[Held, int]],
        names: dict[str, Held],
    ) -> Held:
        owner = self._value(func.value, names)
        if isinstance(owner, Record):
            for arg in args:
                if isinstance(arg, Record):
                    owner.fields.update(arg.fields)
            owner.fields.update(keywords)
        return None

    def _call_function(
        self, node: ast.FunctionDef, args: list[Held], keywords: dict[str, tuple[Held, int]]
    ) -> Held:
        if self.depth > MAX_DEPTH // 2:
            return Opaque(f"{node.name}()")
        self.depth += 1
        try:
            names = self._bind(node.args, args, keywords)
            _, value = self._body(node.body, names)
            return value
        finally:
            self.depth -= 1

    def _bind(
        self, spec: ast.arguments, args: list[Held], keywords: dict[str, tuple[Held, int]]
    ) -> dict[str, Held]:
        names: dict[str, Held] = {}
        positional = [*spec.posonlyargs, *spec.args]
        first = len(positional) - len(spec.defaults)
        for index, arg in enumerate(positional):
            if arg.arg in keywords:
                names[arg.arg] = keywords[arg.arg][0]
            elif index < len(args):
                names[arg.arg] = args[index]
            elif index >= first:
                names[arg.arg] = self._value(spec.defaults[index - first], self.globals)
            else:
                names[arg.arg] = Opaque(arg.arg)
        for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if arg.arg in keywords:
                names[arg.arg] = keywords[arg.arg][0]
            else:
                names[arg.arg] = (
                    Opaque(arg.arg) if default is None else self._value(default, self.globals)
                )
        return names


def _imported(tree: ast.Module) -> frozenset[str]:
    """Names that the file takes from others."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
    return frozenset(found)


def _parse(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{where}:{error.lineno or 0} is not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise InputError(f"{where} is not usable Python: nested too deeply") from None


def _number(left: float, op: ast.operator, right: float) -> int | float | None:
    """Arithmetic on numbers that cannot grow without bound."""
    if abs(left) > 1e18 or abs(right) > 1e18:
        return None
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.Mult):
        return left * right
    if right and isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):
        if isinstance(op, ast.Div):
            return left / right
        return left // right if isinstance(op, ast.FloorDiv) else left % right
    if isinstance(op, ast.Pow) and isinstance(right, int) and 0 <= right <= 60 and abs(left) <= 16:
        return float(left) ** right if isinstance(left, float) else int(left) ** right
    return None


def _loaded(node: ast.expr) -> ast.expr:
    """The target of `x += 1` as something to read."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(id=node.id, ctx=ast.Load()), node)
    if isinstance(node, ast.Attribute):
        made = ast.Attribute(value=node.value, attr=node.attr, ctx=ast.Load())
        return ast.copy_location(made, node)
    return node


def _is_main(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id == "__name__"
    )


def _short(node: ast.expr, depth: int = 0) -> str:
    """A dotted name or the kind of an expression; never the whole text of a deep tree."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and depth < 12:
        return f"{_short(node.value, depth + 1)}.{node.attr}"
    if isinstance(node, ast.Call) and depth < 12:
        return f"{_short(node.func, depth + 1)}()"
    if isinstance(node, ast.Constant):
        return repr(node.value)[:60]
    return type(node).__name__
