"""Shell tokens to a tree of commands: simple commands, if, for, case, while, functions, groups."""

from __future__ import annotations

from typing import NamedTuple

from gangsaw.errors import InputError
from gangsaw.read.launch.shell_lex import ArithWord, ArrayWord, HereDoc, Op, Token, Word

MAX_NESTING = 60


class Simple(NamedTuple):
    """Assignments and words of one command."""

    words: tuple[Word | ArrayWord | ArithWord | HereDoc, ...]
    line: int


class Chain(NamedTuple):
    """Commands joined by `&&` and `||`; `ops[i]` stands before `items[i + 1]`."""

    items: tuple[Node, ...]
    ops: tuple[str, ...]
    line: int


class If(NamedTuple):
    """Branches of condition and body, and the body of `else`."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    otherwise: tuple[Node, ...]
    line: int


class For(NamedTuple):
    """`for name in words`."""

    name: str
    words: tuple[Word, ...]
    body: tuple[Node, ...]
    line: int


class Case(NamedTuple):
    """`case word in pattern) body ;; esac`."""

    word: Word
    arms: tuple[tuple[tuple[Word, ...], tuple[Node, ...]], ...]
    line: int


class Loop(NamedTuple):
    """`while` or `until`: never run here."""

    line: int


class Function(NamedTuple):
    """A function definition."""

    name: str
    body: tuple[Node, ...]
    line: int


class Group(NamedTuple):
    """`{ ...; }` or `( ... )`."""

    body: tuple[Node, ...]
    line: int


Node = Simple | Chain | If | For | Case | Loop | Function | Group
_STOPS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))


class Parser:
    """Recursive descent over the tokens, at most MAX_NESTING deep."""

    def __init__(self, tokens: list[Token], where: str) -> None:
        self.tokens = tokens
        self.where = where
        self.pos = 0
        self.depth = 0

    def program(self) -> tuple[Node, ...]:
        """All commands of the text; a stray closing word is stepped over."""
        nodes: list[Node] = []
        while self.pos < len(self.tokens):
            nodes.extend(self._block())
            self.pos += 1
        return tuple(nodes)

    def _keyword(self) -> str | None:
        token = self._token()
        return token.bare if isinstance(token, Word) else None

    def _token(self) -> Token | None:
        return self.tokens[self.pos] if self.pos < len(self.tokens) else None

    def _is_op(self, *texts: str) -> bool:
        token = self._token()
        return isinstance(token, Op) and token.text in texts

    def _line(self) -> int:
        token = self._token()
        return token.line if token is not None else 0

    def _block(self) -> tuple[Node, ...]:
        """Commands up to a word that closes the surrounding construct."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise InputError(f"{self.where}: shell nested deeper than {MAX_NESTING} levels")
        nodes: list[Node] = []
        while self.pos < len(self.tokens):
            if self._is_op(";", "&", "|"):
                self.pos += 1
                continue
            if self._is_op(")", ";;") or self._keyword() in _STOPS:
                break
            nodes.append(self._chain())
        self.depth -= 1
        return tuple(nodes)

    def _chain(self) -> Node:
        line = self._line()
        items, ops = [self._command()], []
        while self._is_op("&&", "||"):
            token = self._token()
            ops.append(token.text if isinstance(token, Op) else "")
            self.pos += 1
            while self._is_op(";"):
                self.pos += 1
            items.append(self._command())
        return items[0] if not ops else Chain(tuple(items), tuple(ops), line)

    def _command(self) -> Node:
        line, word = self._line(), self._keyword()
        if word == "if":
            return self._if(line)
        if word in ("for", "select"):
            return self._for(line)
        if word == "case":
            return self._case(line)
        if word in ("while", "until"):
            return self._loop(line)
        if word == "{" or self._is_op("("):
            self.pos += 1
            body = self._block()
            self.pos += 1
            return Group(body, line)
        if word == "function" or self._defines():
            return self._function(line)
        return self._simple(line)

    def _defines(self) -> bool:
        after = self.tokens[self.pos + 1 : self.pos + 3]
        return (
            self._keyword() is not None
            and len(after) == 2
            and all(isinstance(token, Op) for token in after)
            and [token.text for token in after if isinstance(token, Op)] == ["(", ")"]
        )

    def _function(self, line: int) -> Node:
        if self._keyword() == "function":
            self.pos += 1
        name = self._keyword() or ""
        self.pos += 1
        while self._is_op("(", ")", ";"):
            self.pos += 1
        if self._keyword() != "{":
            return Loop(line)
        self.pos += 1
        body = self._block()
        self.pos += 1
        return Function(name, body, line)

    def _if(self, line: int) -> Node:
        branches = []
        otherwise: tuple[Node, ...] = ()
        while self._keyword() in ("if", "elif"):
            self.pos += 1
            condition = self._block()
            if self._keyword() == "then":
                self.pos += 1
            branches.append((condition, self._block()))
        if self._keyword() == "else":
            self.pos += 1
            otherwise = self._block()
        if self._keyword() == "fi":
            self.pos += 1
        return If(tuple(branches), otherwise, line)

    def _for(self, line: int) -> Node:
        self.pos += 1
        name = self._keyword() or ""
        self.pos += 1
        words: list[Word] = []
        while self.pos < len(self.tokens) and self._keyword() != "do":
            token = self._token()
            if isinstance(token, Word) and token.bare != "in":
                words.append(token)
            self.pos += 1
        self.pos += 1
        body = self._block()
        self.pos += 1
        return For(name, tuple(words), body, line)

    def _loop(self, line: int) -> Node:
        self.pos += 1
        self._block()
        self.pos += 1
        self._block()
        self.pos += 1
        return Loop(line)

    def _case(self, line: int) -> Node:
        self.pos += 1
        token = self._token()
        subject = token if isinstance(token, Word) else Word((), line)
        self.pos += 2
        arms = []
        while self.pos < len(self.tokens) and self._keyword() != "esac":
            patterns: list[Word] = []
            while self.pos < len(self.tokens) and not self._is_op(")"):
                entry = self._token()
                if isinstance(entry, Word):
                    if entry.bare == "esac":
                        break
                    patterns.append(entry)
                self.pos += 1
            if self._keyword() == "esac":
                break
            self.pos += 1
            arms.append((tuple(patterns), self._block()))
            while self._is_op(";;", ";"):
                self.pos += 1
            if self._is_op(")"):
                self.pos += 1
        self.pos += 1
        return Case(subject, tuple(arms), line)

    def _simple(self, line: int) -> Node:
        words: list[Word | ArrayWord | ArithWord | HereDoc] = []
        start = self.pos
        while self.pos < len(self.tokens):
            token = self.tokens[self.pos]
            if isinstance(token, Op):
                break
            words.append(token)
            self.pos += 1
        if self.pos == start:
            self.pos += 1
        return Simple(tuple(words), line)
