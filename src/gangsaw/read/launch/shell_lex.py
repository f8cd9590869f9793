"""Shell text to words and operators. Nothing is expanded and nothing is run here."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gangsaw.errors import InputError

MAX_TOKENS = 200_000


class Part(NamedTuple):
    """A piece of a word: literal text, `${...}`, `$(...)` or `$((...))`, in quotes or not."""

    kind: Literal["text", "param", "command", "arith"]
    text: str
    quoted: bool


class Word(NamedTuple):
    """One word before expansion."""

    parts: tuple[Part, ...]
    line: int

    @property
    def bare(self) -> str | None:
        """The text of a word without quotes and expansions, else None."""
        if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].quoted:
            return self.parts[0].text
        return None


class Op(NamedTuple):
    """A control operator; a newline is `;`."""

    text: str
    line: int


class ArrayWord(NamedTuple):
    """`NAME=(...)` or `NAME+=(...)`."""

    name: str
    append: bool
    words: tuple[Word, ...]
    line: int


class ArithWord(NamedTuple):
    """`(( ... ))` as a command."""

    text: str
    line: int


class HereDoc(NamedTuple):
    """The body of `<<MARK`; with a quoted mark nothing in it is expanded."""

    text: str
    quoted: bool
    line: int


Token = Word | Op | ArrayWord | ArithWord | HereDoc

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPECIAL = frozenset("@*#?$!-0123456789")


class Lexer:
    """One pass over the text; every character is looked at a bounded number of times."""

    def __init__(self, text: str, where: str, line: int = 1) -> None:
        self.text = text
        self.where = where
        self.pos = 0
        self.line = line
        self.tokens: list[Token] = []
        self.heredocs: list[tuple[str, bool, int]] = []

    def run(self) -> list[Token]:
        """All tokens. Raises InputError beyond MAX_TOKENS."""
        while self.pos < len(self.text):
            if len(self.tokens) > MAX_TOKENS:
                raise InputError(f"{self.where}: more than {MAX_TOKENS:,} words; that is the limit")
            self._next()
        return self.tokens

    def _peek(self, ahead: int = 0) -> str:
        index = self.pos + ahead
        return self.text[index] if index < len(self.text) else ""

    def _next(self) -> None:
        char = self._peek()
        if char == "\n":
            self._op(";", 1)
            self.line += 1
            self._bodies()
        elif char in " \t\r":
            self.pos += 1
        elif char == "\\" and self._peek(1) == "\n":
            self.pos += 2
            self.line += 1
        elif char == "\\" and self.text.startswith("\r\n", self.pos + 1):
            self.pos += 3
            self.line += 1
        elif char == "#":
            end = self.text.find("\n", self.pos)
            self.pos = len(self.text) if end < 0 else end
        elif self.text.startswith("((", self.pos) and self._command_position():
            self._arith_command()
        elif char in "();|&<>":
            self._operator(char)
        else:
            self._word()

    def _command_position(self) -> bool:
        if not self.tokens or isinstance(self.tokens[-1], Op):
            return True
        last = self.tokens[-1]
        return isinstance(last, Word) and last.bare in ("if", "while", "then", "do", "else", "elif")

    def _op(self, text: str, width: int) -> None:
        self.tokens.append(Op(text, self.line))
        self.pos += width

    def _operator(self, char: str) -> None:
        pair = self.text[self.pos : self.pos + 2]
        if pair in ("&&", "||", ";;", "|&"):
            self._op("|" if pair == "|&" else pair, 2)
        elif self.text.startswith("&>", self.pos):
            self.pos += 1
            self._redirect()
        elif char in "<>":
            self._redirect()
        else:
            self._op(char, 1)

    def _redirect(self) -> None:
        """Skip `> file`, `2>&1`, `< file`; remember a heredoc, drop a here-string."""
        if self.text.startswith("<<<", self.pos):
            self.pos += 3
        elif self.text.startswith("<<", self.pos):
            self.pos += 2
            dash = self._peek() == "-"
            self.pos += 1 if dash else 0
            self._blanks()
            word = self._read_word()
            mark = "".join(part.text for part in word.parts)
            quoted = any(part.quoted for part in word.parts)
            self.heredocs.append((mark, dash, len(self.tokens)))
            self.tokens.append(HereDoc("", quoted, self.line))
            return
        else:
            while self._peek() in ("<", ">", "&", "|", "-") and self._peek():
                self.pos += 1
        self._blanks()
        if self._peek() not in ("", "\n", ";", "|", "&", ")", "("):
            self._read_word()

    def _blanks(self) -> None:
        while self._peek() in (" ", "\t"):
            self.pos += 1

    def _bodies(self) -> None:
        """Skip the bodies of heredocs that were announced on the line just ended."""
        for mark, dash, index in self.heredocs:
            begin = stop = self.pos
            start = self.line
            while self.pos < len(self.text):
                end = self.text.find("\n", self.pos)
                end = len(self.text) if end < 0 else end
                row = self.text[self.pos : end]
                stop = self.pos
                self.pos = min(end + 1, len(self.text))
                self.line += 1
                if (row.lstrip("\t") if dash else row).rstrip("\r") == mark:
                    break
            else:
                stop = self.pos
            held = self.tokens[index]
            if isinstance(held, HereDoc):
                self.tokens[index] = HereDoc(self.text[begin:stop], held.quoted, start)
        self.heredocs = []

    def _arith_command(self) -> None:
        line = self.line
        text = self._balanced("((", "))")
        self.tokens.append(ArithWord(text, line))

    def _balanced(self, start: str, stop: str) -> str:
        """The text between `start` (at the position) and its matching `stop`."""
        self.pos += len(start)
        begin, depth = self.pos, 0
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char == "\n":
                self.line += 1
            if depth == 0 and self.text.startswith(stop, self.pos):
                inner = self.text[begin : self.pos]
                self.pos += len(stop)
                return inner
            if char == "\\":
                self.pos += 1
            elif char == "'" and start != "((":
                self._skip_single()
            elif char in "({" and char == start[-1]:
                depth += 1
            elif depth and char == stop[0]:
                depth -= 1
            self.pos += 1
        return self.text[begin:]

    def _skip_single(self) -> None:
        end = self.text.find("'", self.pos + 1)
        if end > 0:
            self.line += self.text.count("\n", self.pos, end)
            self.pos = end

    def _word(self) -> None:
        word = self._read_word()
        name = word.bare
        if name and name.endswith("=") and self._peek() == "(" and _is_target(name[:-1]):
            self._array(name[:-1], word.line)
        else:
            self.tokens.append(word)

    def _array(self, target: str, line: int) -> None:
        self.pos += 1
        start = self.line
        inner = Lexer(self._array_body(), self.where, start)
        words = tuple(token for token in inner.run() if isinstance(token, Word))
        append = target.endswith("+")
        self.tokens.append(ArrayWord(target.rstrip("+"), append, words, line))

    def _array_body(self) -> str:
        """The text up to the closing parenthesis, quotes, comments and nesting respected."""
        begin, depth = self.pos, 0
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char == "\n":
                self.line += 1
            elif char == "\\":
                self.line += self._peek(1) == "\n"
                self.pos += 1
            elif char == "#" and (self.pos == begin or self.text[self.pos - 1] in " \t\n"):
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
                continue
            elif char == "'":
                self._skip_single()
            elif char == '"':
                self._skip_double()
            elif char == "(":
                depth += 1
            elif char == ")":
                if depth == 0:
                    self.pos += 1
                    return self.text[begin : self.pos - 1]
                depth -= 1
            self.pos += 1
        return self.text[begin:]

    def _skip_double(self) -> None:
        self.pos += 1
        while self.pos < len(self.text) and self.text[self.pos] != '"':
            self.line += self.text[self.pos] == "\n"
            self.pos += 2 if self.text[self.pos] == "\\" else 1

    def _read_word(self) -> Word:
        line = self.line
        parts: list[Part] = []
        while self.pos < len(self.text):
            char = self._peek()
            if char in " \t\r\n;|&()<>":
                if char in "<>" and parts and parts[-1].text.isdigit() and len(parts) == 1:
                    parts = []
                    self._redirect()
                break
            if char == "\\":
                if self._peek(1) == "\n":
                    self.pos += 2
                    self.line += 1
                    break
                parts.append(Part("text", self._peek(1), True))
                self.pos += 2
            elif char == "'":
                parts.append(self._single())
            elif char == '"':
                parts.extend(self._double())
            elif char in "$`":
                parts.append(self._dollar(False))
            else:
                parts.append(Part("text", self._plain(), False))
                if parts[-1].text.endswith("=") and self._peek() == "(":
                    break
        return Word(tuple(parts), line)

    def _plain(self) -> str:
        begin = self.pos
        while self.pos < len(self.text) and self.text[self.pos] not in " \t\r\n;|&()<>\\'\"$`":
            self.pos += 1
        return self.text[begin : self.pos]

    def _single(self) -> Part:
        end = self.text.find("'", self.pos + 1)
        end = len(self.text) if end < 0 else end
        inner = self.text[self.pos + 1 : end]
        self.line += inner.count("\n")
        self.pos = end + 1
        return Part("text", inner, True)

    def _double(self) -> list[Part]:
        self.pos += 1
        parts: list[Part] = [Part("text", "", True)]
        buffer: list[str] = []
        while self.pos < len(self.text) and self._peek() != '"':
            char = self._peek()
            if char == "\\" and self._peek(1) in '"\\$`\n':
                if self._peek(1) == "\n":
                    self.line += 1
                else:
                    buffer.append(self._peek(1))
                self.pos += 2
            elif char in "$`":
                parts.append(Part("text", "".join(buffer), True))
                buffer = []
                parts.append(self._dollar(True))
            else:
                self.line += char == "\n"
                buffer.append(char)
                self.pos += 1
        self.pos += 1
        parts.append(Part("text", "".join(buffer), True))
        return parts

    def _dollar(self, quoted: bool) -> Part:
        if self._peek() == "`":
            begin = self.pos + 1
            end = self.text.find("`", begin)
            end = len(self.text) if end < 0 else end
            self.line += self.text.count("\n", begin, end)
            self.pos = end + 1
            return Part("command", self.text[begin:end], quoted)
        if self.text.startswith("$((", self.pos):
            self.pos += 1
            return Part("arith", self._balanced("((", "))"), quoted)
        if self.text.startswith("$(", self.pos):
            self.pos += 1
            return Part("command", self._balanced("(", ")"), quoted)
        if self.text.startswith("${", self.pos):
            self.pos += 1
            return Part("param", self._balanced("{", "}"), quoted)
        self.pos += 1
        begin = self.pos
        if self._peek() in _SPECIAL and self._peek():
            self.pos += 1
            return Part("param", self.text[begin : self.pos], quoted)
        while self._peek() in _NAME and self._peek():
            self.pos += 1
        if self.pos == begin:
            return Part("text", "$", quoted)
        return Part("param", self.text[begin : self.pos], quoted)


def _is_target(text: str) -> bool:
    """Whether `text` is a variable name, with a `+` behind it for an appending assignment."""
    name = text.rstrip("+")
    return bool(name) and all(c in _NAME for c in name) and not name[0].isdigit()
