"""How one verb parses its words: repeated flags are refused, the help is plain and grouped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from typer import Context
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

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
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

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Write the flags, a section for each group of them."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            default = "Arguments" if param.param_type_name == "argument" else "Output"
            panel = getattr(param, "rich_help_panel", None) or default
            panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


def usage_line(fault: Exception) -> str:
    """A parser's complaint as one line, with where to find what is legal."""
    text = str(getattr(fault, "format_message", fault.__str__)()).rstrip(".")
    ctx = getattr(fault, "ctx", None)
    path = getattr(ctx, "command_path", None) or "gangsaw"
    return f"{text}. Legal: see {path} --help"
