"""How one verb parses its words: repeated flags are refused, the help is plain and grouped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from typer.core import TyperCommand

from gangsaw.errors import InputError


class Formatter(Protocol):
    """What the parser hands over to write help with."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """An indented section under a heading."""
        ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """A list of terms with their meaning."""
        ...


class PlainCommand(TyperCommand):
    """A command whose flags are given once, and whose help is grouped by panel in plain text."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401
        """The words of the usage line: what must be given, then the flags."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return [*(_metavar(p) for p in arguments), "[FLAGS]"]

    # The parser's own context type is private to typer, hence Any.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse, after refusing a flag that is stated twice."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            seen: set[str] = set()
            for param in order:
                name = str(param.name)
                options = [opt for opt in param.opts if opt.startswith("-")]
                if name in seen and options and not getattr(param, "multiple", False):
                    raise InputError(f"{options[0]} is stated twice. Legal: once")
                seen.add(name)
        return list(super().parse_args(ctx, args))

    def format_options(self, ctx: Any, formatter: Formatter) -> None:  # noqa: ANN401
        """Write the flags, a section for each group of them."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                record = (_metavar(param), str(getattr(param, "help", "") or ""))
                panel = "Arguments"
            else:
                found = param.get_help_record(ctx)
                if found is None:
                    continue
                record = found
                panel = getattr(param, "rich_help_panel", None) or "Output"
            panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


def _metavar(param: object) -> str:
    return str(getattr(param, "metavar", None) or str(getattr(param, "name", "")).upper())


def usage_line(fault: Exception) -> str:
    """A parser's complaint as one line, with where to find what is legal."""
    text = str(getattr(fault, "format_message", fault.__str__)()).rstrip(".")
    ctx = getattr(fault, "ctx", None)
    path = getattr(ctx, "command_path", None) or "gangsaw"
    return f"{text}. Legal: see {path} --help"
