"""Shell scripts followed without running anything: what is assigned, what would be launched."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

from gangsaw.errors import InputError
from gangsaw.read.launch.shell_expand import UNKNOWN, Scope
from gangsaw.read.launch.shell_lex import ArithWord, ArrayWord, HereDoc, Lexer, Word
from gangsaw.read.launch.shell_parse import (
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Loop,
    Node,
    Parser,
    Simple,
)

MAX_STEPS = 20_000
MAX_CALLS = 20
MAX_TURNS = 64

_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[0-9]{1,4}\])?(\+?)=", re.DOTALL)
_DECLARE = frozenset(("export", "declare", "local", "readonly", "typeset"))
_HARMLESS = frozenset((
    "echo", "printf", "set", "cd", "mkdir", "module", "ulimit", "sleep", "date", "exit", "return",
    "shift", "wait", "pwd", "ls", "cat", "tee", "unset", "trap", "shopt", "break", "continue",
    ":", "true", "false", "[", "[[", "test", "nvidia-smi", "conda", "pip", "pip3", "rm", "cp",
    "mv", "hostname", "which", "env", "getopts", "read", "umask", "touch", "ln", "chmod", "pushd",
    "popd", "scontrol", "git", "apt-get", "apt", "usage", "log", "info", "let", "alias",
))  # fmt: skip
_SHELLS = frozenset(("bash", "sh", "/bin/bash", "/bin/sh", "zsh"))


class Command(NamedTuple):
    """One command with its words expanded; words hold UNKNOWN where the file does not say."""

    argv: tuple[str, ...]
    line: int


class Script:
    """The outcome of following a script."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.scope = Scope(where)
        self.commands: list[Command] = []
        self.heredocs: list[tuple[int, str]] = []
        self.exported: dict[str, int] = {}
        self.unread: list[tuple[int, str]] = []
        self.functions: dict[str, tuple[Node, ...]] = {}
        self.steps = 0
        self.calls = 0

    def read(self, text: str, line: int = 1) -> None:
        """Follow `text`. Raises InputError when it needs more than MAX_STEPS steps."""
        tokens = Lexer(text, self.where, line).run()
        self._all(Parser(tokens, self.where).program())

    def _all(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise InputError(f"{self.where}: more than {MAX_STEPS:,} commands to follow")
            self._node(node)

    def _node(self, node: Node) -> None:
        if isinstance(node, Simple):
            self._simple(node)
        elif isinstance(node, Chain):
            self._chain(node)
        elif isinstance(node, If):
            self._if(node)
        elif isinstance(node, For):
            self._for(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, Function):
            self.functions[node.name] = node.body
        elif isinstance(node, Group):
            self._all(node.body)
        elif isinstance(node, Loop):
            self.unread.append((node.line, "a while or until loop"))

    # -- control flow ---------------------------------------------------------------------------

    def _chain(self, node: Chain) -> None:
        state: bool | None = self._truth(node.items[0])
        if state is None and not _is_test(node.items[0]):
            self._node(node.items[0])
            state = True
        for op, item in zip(node.ops, node.items[1:], strict=True):
            if state is None:
                self.unread.append((node.line, "a condition that the file does not decide"))
                return
            if state == (op == "&&"):
                state = self._truth(item)
                if state is None and not _is_test(item):
                    self._node(item)
                    state = True

    def _if(self, node: If) -> None:
        for condition, body in node.branches:
            state = self._condition(condition)
            if state is None:
                self.unread.append((node.line, "a condition that the file does not decide"))
                return
            if state:
                self._all(body)
                return
        self._all(node.otherwise)

    def _for(self, node: For) -> None:
        values = [field for word in node.words for field in self.scope.fields(word)]
        if not values or any(UNKNOWN in value for value in values) or len(values) > MAX_TURNS:
            self.unread.append((node.line, "a for loop"))
            return
        for value in values:
            self.scope.names[node.name] = [value]
            self._all(node.body)

    def _case(self, node: Case) -> None:
        subject = self._quiet(node.word)
        if UNKNOWN in subject:
            self.unread.append((node.line, "a case on something that the file does not state"))
            return
        for patterns, body in node.arms:
            texts = [self._quiet(word) for word in patterns]
            if any(fnmatch.fnmatchcase(subject[:2000], text) for text in texts if len(text) < 200):
                self._all(body)
                return

    def _quiet(self, word: Word) -> str:
        """`word` as text where unset variables are empty."""
        self.scope.unset_is_empty = True
        try:
            return self.scope.text(word)
        finally:
            self.scope.unset_is_empty = False

    def _condition(self, nodes: tuple[Node, ...]) -> bool | None:
        state: bool | None = None
        for node in nodes:
            state = self._truth(node)
        return state

    def _truth(self, node: Node) -> bool | None:
        """Whether a condition holds; None when that cannot be told from the file."""
        if isinstance(node, Chain):
            state = self._truth(node.items[0])
            for op, item in zip(node.ops, node.items[1:], strict=True):
                other = self._truth(item)
                if op == "&&":
                    state = False if False in (state, other) else _both(state, other)
                else:
                    state = True if True in (state, other) else _both(state, other)
            return state
        if not isinstance(node, Simple) or not node.words:
            return None
        first = node.words[0]
        if isinstance(first, ArithWord):
            value = self.scope.arith(first.text)
            return None if value is None else value != 0
        words = [self._quiet(word) for word in node.words if isinstance(word, Word)]
        if not words:
            return None
        if words in (["true"], [":"]):
            return True
        if words == ["false"]:
            return False
        if not _is_test(node):
            return None
        return _test([word for word in words if word not in ("[", "[[", "]", "]]", "test")])

    # -- simple commands --------------------------------------------------------------------------

    def _simple(self, node: Simple) -> None:
        words = list(node.words)
        first = words[0].bare if words and isinstance(words[0], Word) else None
        declares = first in _DECLARE
        if declares:
            words = words[1:]
        while words and self._assign(words[0], export=first == "export"):
            words = words[1:]
        if declares:
            return
        if words and isinstance(words[0], ArithWord):
            self._arith_assign(words[0].text)
            return
        argv = [f for word in words if isinstance(word, Word) for f in self.scope.fields(word)]
        bodies = [word for word in words if isinstance(word, HereDoc)]
        if argv:
            self._command(argv, node.line, bodies)

    def _assign(self, word: Word | ArrayWord | ArithWord | HereDoc, export: bool) -> bool:
        """Carry out an assignment; False when `word` is none."""
        if isinstance(word, ArrayWord):
            values = [field for item in word.words for field in self.scope.fields(item)]
            held = self.scope.names.get(word.name, []) if word.append else []
            self.scope.names[word.name] = [*held, *values]
            return True
        if not isinstance(word, Word) or not word.parts:
            return export
        head = word.parts[0]
        match = _ASSIGN.match(head.text) if head.kind == "text" and not head.quoted else None
        if match is None:
            return export
        name, index, append = match.groups()
        rest = Word((head._replace(text=head.text[match.end() :]), *word.parts[1:]), word.line)
        value = self.scope.text(rest)
        if index:
            self.scope.names.setdefault(name, []).append(value)
        elif append:
            held = self.scope.names.get(name, [""]) or [""]
            self.scope.names[name] = [self.scope.spend(held[0] + value), *held[1:]]
        else:
            self.scope.names[name] = [value]
        self.exported[name] = word.line
        return True

    def _arith_assign(self, text: str) -> None:
        name, sign, value = text.strip().partition("=")
        if sign and name.strip().isidentifier():
            number = self.scope.arith(value)
            self.scope.names[name.strip()] = [UNKNOWN if number is None else str(number)]

    def _command(self, argv: list[str], line: int, bodies: list[HereDoc]) -> None:
        name = argv[0].rsplit("/", 1)[-1]
        for body in bodies:
            if name in _SHELLS or name in ("sbatch", "srun"):
                self._again(body.text, body.line)
            else:
                self.heredocs.append((body.line, self._filled(body)))
        if argv[0] in self.functions:
            self._call(argv)
        elif name in ("source", "."):
            self.unread.append((line, f"sources {' '.join(argv[1:2])}, which was not read"))
        elif name == "eval":
            self._again(" ".join(argv[1:]), line)
        elif "-c" in argv and any(word in _SHELLS for word in argv[: argv.index("-c")]):
            at = argv.index("-c")
            self.commands.append(Command(tuple(argv[:at]), line))
            self._again(" ".join(argv[at + 1 : at + 2]), line)
        elif name not in _HARMLESS or name == "env":
            self.commands.append(Command(tuple(argv), line))

    def _filled(self, body: HereDoc) -> str:
        """A heredoc with its variables put in."""
        if body.quoted:
            return body.text
        tokens = Lexer('"' + body.text.replace('"', '\\"') + '"', self.where).run()
        return "".join(self.scope.text(token) for token in tokens if isinstance(token, Word))

    def _again(self, text: str, line: int) -> None:
        """Follow a text that a shell inside the shell would run."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            self.unread.append((line, "shells nested too deeply"))
        else:
            self.read(text, line)
        self.calls -= 1

    def _call(self, argv: list[str]) -> None:
        self.calls += 1
        if self.calls <= MAX_CALLS:
            held = {key: self.scope.names.get(key) for key in ("@", "*", "1", "2", "3", "4")}
            self.scope.names["@"] = self.scope.names["*"] = argv[1:]
            for number, value in enumerate(argv[1:5], start=1):
                self.scope.names[str(number)] = [value]
            self._all(self.functions[argv[0]])
            for key, before in held.items():
                self.scope.names.pop(key, None)
                if before is not None:
                    self.scope.names[key] = before
        self.calls -= 1


def _both(left: bool | None, right: bool | None) -> bool | None:
    """Three-valued join of two conditions where neither decides alone."""
    return None if left is None or right is None else left


def _is_test(node: Node) -> bool:
    """Whether a command only asks something."""
    if not isinstance(node, Simple) or not node.words:
        return False
    first, last = node.words[0], node.words[-1]
    if isinstance(first, ArithWord):
        return "=" not in re.sub(r"[=!<>]=", "", first.text)
    starts = isinstance(first, Word) and first.bare in ("[", "[[", "test", "!")
    return starts or (isinstance(last, Word) and last.bare in ("]]", "]"))


def _test(words: list[str]) -> bool | None:
    """`[ ... ]` on expanded words; None for files, unknown values and forms not known here."""
    if words and words[0] == "!":
        state = _test(words[1:])
        return None if state is None else not state
    if any(UNKNOWN in word for word in words):
        return None
    if len(words) == 1 and not words[0].startswith("-"):
        return words[0] != ""
    if len(words) in (1, 2) and words[0] in ("-z", "-n"):
        empty = len(words) == 1 or words[1] == ""
        return empty == (words[0] == "-z")
    if len(words) == 3:
        return _compare(*words)
    return False if not words else None


def _compare(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "=="):
        return fnmatch.fnmatchcase(left[:500], right[:200])
    if sign == "!=":
        return not fnmatch.fnmatchcase(left[:500], right[:200])
    numbers = re.fullmatch(r"-?[0-9]{1,15}", left) and re.fullmatch(r"-?[0-9]{1,15}", right)
    if not numbers:
        return None
    a, b = int(left), int(right)
    table = {
        "-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b,
    }  # fmt: skip
    return table.get(sign)
