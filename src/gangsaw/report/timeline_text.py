"""A timeline as text: one row a rank, one cell a slice of time, and what each rank waits for."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.text import Text

from gangsaw.report import words
from gangsaw.report.colours import CAUSE_COLOURS, KIND_COLOURS
from gangsaw.report.text import is_plain, plain_table
from gangsaw.schedule import INFOS
from gangsaw.simulate.timeline import COMPUTE, IDLE, ROW_KINDS, Timeline
from gangsaw.spec.result import CAUSES
from gangsaw.units import format_frac, format_s

MOST_RANKS = 32
IDLE_CELL = "."
KIND_LOOKS = {
    "F": KIND_COLOURS["forward"],
    "B": KIND_COLOURS["backward"],
    "I": KIND_COLOURS["backward_input"],
    "W": KIND_COLOURS["backward_weight"],
}


def cells(timeline: Timeline, width: int) -> tuple[str, ...]:
    """A string a rank: the first letter of what runs at the middle of each slice, `.` for idle."""
    own = np.flatnonzero(timeline.stream == COMPUTE)
    middles = (np.arange(width) + 0.5) * timeline.makespan_s / width
    rows = []
    for rank in range(timeline.ranks):
        mine = own[timeline.rank[own] == rank]
        mine = mine[np.argsort(timeline.start_s[mine], kind="stable")]
        at = np.searchsorted(timeline.start_s[mine], middles, side="right") - 1
        letters = []
        for place, t in zip(at, middles, strict=True):
            row = mine[place] if place >= 0 else -1
            running = row >= 0 and t < timeline.end_s[row] and timeline.kind[row] != IDLE
            letters.append(ROW_KINDS[timeline.kind[row]][0] if running else IDLE_CELL)
        rows.append("".join(letters))
    return tuple(rows)


def rule(name: str) -> str:
    """A named schedule's condition and published figures in one line; empty for others."""
    info = INFOS.get(name)
    if info is None:
        return ""
    return (
        f"{info.title}, equal stages: idle {info.bubble}; microbatches held {info.in_flight};"
        f" transfers of each {info.transfers}; condition: {info.condition} ({info.source})"
    )


def timeline_text(timeline: Timeline, title: str, console: Console) -> None:
    """The pipeline of one step, drawn and counted."""
    console.print(Text(title, style="bold"))
    spent = f"{format_s(timeline.makespan_s)} of pipeline"
    console.print(Text(f"{spent}, {format_frac(timeline.bubble_frac)} of it idle"))
    if not timeline.measured and rule(timeline.name):
        console.print(Text(rule(timeline.name), style="dim"))
    console.print()
    shown = timeline.only_ranks(MOST_RANKS) if timeline.ranks > MOST_RANKS else timeline
    idle = timeline.idle_s()
    for rank, row in enumerate(cells(shown, console.width - 18)):
        line = Text(f"rank {rank:<4} ")
        for letter in row:
            if is_plain(console):
                line.append(letter)
            elif letter == IDLE_CELL:
                line.append("░", style=CAUSE_COLOURS["bubble"])
            else:
                line.append("█", style=KIND_LOOKS.get(letter, KIND_COLOURS["forward"]))
        line.append(f" {format_frac(idle[rank] / timeline.makespan_s):>7}", style="dim")
        console.print(line)
    if shown is not timeline:
        console.print(Text(f"and {timeline.ranks - MOST_RANKS} more ranks", style="dim"))
    console.print(Text("F forward, B backward, I and W its halves, . idle; at the end of a row its"
                       " idle share", style="dim"))  # fmt: skip
    console.print()
    _causes(timeline, console)


def _causes(timeline: Timeline, console: Console) -> None:
    table = plain_table(("cause", "left"), ("rank-seconds", "right"), ("share", "right"))
    total = timeline.ranks * timeline.makespan_s
    spent = timeline.by_cause_s()
    for cause in sorted(CAUSES, key=lambda c: -spent.get(c, 0.0)):
        if spent.get(cause, 0.0) > 0.0:
            table.add_row(
                words.CAUSE_TITLES[cause], format_s(spent[cause]), format_frac(spent[cause] / total)
            )
    console.print(table)
