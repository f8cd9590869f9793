"""Schedules as text: the CSV of torch.distributed.pipelining, one line a rank."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gangsaw.errors import InputError
from gangsaw.schedule.actions import (
    KIND_NAMES,
    NO_MICROBATCH,
    PAIR_FIRST,
    PAIR_SECOND,
    SINGLE,
    UNSHARD,
    B,
    F,
    I,
    Row,
    Schedule,
    action_text,
    from_rows,
)
from gangsaw.schedule.legal import check

_KIND_OF = {name: number for number, name in enumerate(KIND_NAMES)}
_ACTION = re.compile(
    r"(\d{1,6})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|[FIWB])(\d{0,7})"
)
_FORM = "<stage><action><microbatch>, action one of " + ", ".join(KIND_NAMES)
MAX_BYTES = 400_000_000
MAX_STAGES = 100_000


def to_csv(schedule: Schedule) -> str:
    """The schedule as torch's CSV, which `parse_csv` reads back unchanged."""
    lines = []
    for rank in range(schedule.ranks):
        row = schedule.rank_row(rank)
        cells: list[str] = []
        columns = zip(*(column.tolist() for column in row), strict=True)
        first = ""
        for kind, stage, microbatch, pair in columns:
            text = action_text(kind, stage, microbatch)
            if pair == PAIR_FIRST:
                first = text
            elif pair == PAIR_SECOND:
                cells.append(f"({first};{text})OVERLAP_F_B")
            else:
                cells.append(text)
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def csv_note(schedule: Schedule) -> str:
    """What torch needs for the file beside it; empty where torch runs it as it stands."""
    if schedule.pipes == 1:
        return ""
    half = schedule.stages // schedule.pipes
    return (
        f"{schedule.name} holds two copies of the model in opposite directions, stages 0 to"
        f" {half - 1} and {half} to {schedule.stages - 1}: torch runs this file only with stages"
        f" that let microbatches enter at stage {half} too and leave at stage {half - 1};"
        " dualpipe-v runs as it stands"
    )


def parse_csv(text: str, name: str = "schedule", pipes: int = 1) -> Schedule:
    """Read torch's CSV: line k is rank k, empty cells are skipped.

    Raises InputError with line, cell and reason for anything that is not a legal schedule.
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{name}: the file is empty; one line of actions a rank is needed")
    rows = [_parse_line(line, name, number) for number, line in enumerate(lines, 1)]
    stages = 1 + max((int(row.stage.max()) for row in rows if len(row.stage)), default=-1)
    microbatches = 1 + max((int(r.microbatch.max()) for r in rows if len(r.stage)), default=-1)
    if stages > MAX_STAGES or stages == 0 or microbatches == 0:
        raise InputError(f"{name}: {stages} stages and {microbatches} microbatches; 1 to 100,000")
    cells = stages * microbatches
    if cells > 4 * sum(len(row.kind) for row in rows):
        raise InputError(
            f"{name}: stage {stages - 1} and microbatch {microbatches - 1} are named, which makes"
            f" {cells} forwards, but the file has only {sum(len(r.kind) for r in rows)} actions"
        )
    schedule = from_rows(name, rows, stages, microbatches, pipes)
    try:
        check(schedule)
    except InputError as fault:
        if pipes == 1 and _is_two_way(name, rows, stages, microbatches):
            raise InputError(
                f"{name}: stages 0 to {stages // 2 - 1} and {stages // 2} to {stages - 1} are two"
                " copies of a model in opposite directions, as DualPipe has them; a file holds"
                " one. Legal: --schedule dualpipe"
            ) from None
        raise fault
    return schedule


def _is_two_way(name: str, rows: list[Row], stages: int, microbatches: int) -> bool:
    """Whether what is no legal schedule of one model is one of two."""
    if stages % 2 or len(rows) * 2 != stages:
        return False
    try:
        check(from_rows(name, rows, stages, microbatches, 2))
    except InputError:
        return False
    return True


def read_schedule(path: Path) -> Schedule:
    """A schedule file of the user's own. Raises InputError as `parse_csv` does."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path}: {size} bytes; a schedule has at most {MAX_BYTES}")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} line {line}: byte {error.start} is not UTF-8 text; a schedule is {_FORM}"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_csv(text, name=f"file:{path}")


def _parse_line(line: str, name: str, number: int) -> Row:
    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    for position, cell in enumerate(line.split(","), 1):
        text = cell.strip()
        if not text:
            continue
        where = f"{name} line {number} cell {position}"
        if text.startswith("("):
            first, second = _split_pair(text, where)
            _append(columns, first, where, PAIR_FIRST)
            _append(columns, second, where, PAIR_SECOND)
            kinds = set(columns[0][-2:])
            if F not in kinds or not kinds & {B, I}:
                raise InputError(f"{where}: {_short(text)!r} must pair one F with one B or I")
        else:
            _append(columns, text, where, SINGLE)
    return Row.of(*(np.asarray(column, np.int64) for column in columns))


def _split_pair(text: str, where: str) -> tuple[str, str]:
    body, bracket, kind = text[1:].partition(")")
    parts = body.split(";")
    if not bracket or kind != "OVERLAP_F_B" or len(parts) != 2:
        raise InputError(f"{where}: {_short(text)!r} is not (<action>;<action>)OVERLAP_F_B")
    return parts[0].strip(), parts[1].strip()


def _append(
    columns: tuple[list[int], list[int], list[int], list[int]], text: str, where: str, pair: int
) -> None:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise InputError(f"{where}: {_short(text)!r} is not {_FORM}")
    kind = _KIND_OF[match.group(2)]
    if (kind >= UNSHARD) == bool(match.group(3)):
        rule = "takes no microbatch" if kind >= UNSHARD else "needs a microbatch number"
        raise InputError(f"{where}: {_short(text)!r}: {match.group(2)} {rule}")
    columns[0].append(kind)
    columns[1].append(int(match.group(1)))
    columns[2].append(int(match.group(3)) if match.group(3) else NO_MICROBATCH)
    columns[3].append(pair)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
