"""Schedules as text: the CSV of torch.distributed.pipelining, one line a rank."""

from __future__ import annotations

import re
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import numpy as np

from gangsaw.errors import InputError
from gangsaw.read.toml import shown
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
    r"(\d{1,6})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|[FIWB])(\d{0,7})",
    re.ASCII,
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
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"{name}: the file is empty; one line of actions a rank is needed")
    if len(lines) > MAX_STAGES:
        raise InputError(f"{name}: {len(lines):,} lines, one a rank. Legal: up to {MAX_STAGES:,}")
    rows = [_parse_line(line, name, number) for number, line in enumerate(lines, 1)]
    stages, microbatches = _sizes(rows, name)
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


def _sizes(rows: list[Row], name: str) -> tuple[int, int]:
    """Stages and microbatches that the rows name, refused where no schedule can have as many."""
    last_stage = [int(row.stage.max()) for row in rows]
    last_microbatch = [int(row.microbatch.max()) for row in rows]
    stages, microbatches = 1 + max(last_stage), 1 + max(last_microbatch)
    line = 1 + last_stage.index(stages - 1)
    if stages > MAX_STAGES:
        raise InputError(
            f"{name} line {line}: stage {stages - 1}. Legal: stages 0 to {MAX_STAGES - 1}"
        )
    if microbatches == 0:
        raise InputError(
            f"{name} line {line}: no line has a forward or a backward. Legal: each stage and"
            " microbatch has F and B, or F, I and W"
        )
    actions = sum(len(row.kind) for row in rows)
    if stages * microbatches > 4 * actions:
        other = 1 + last_microbatch.index(microbatches - 1)
        raise InputError(
            f"{name}: stage {stages - 1} (line {line}) and microbatch {microbatches - 1} (line"
            f" {other}) are named, which makes {stages * microbatches:,} forwards, but the file has"
            f" only {actions:,} actions"
        )
    return stages, microbatches


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
    """A schedule file of the user's own, a regular file of UTF-8 text (a byte order mark in front
    is passed over). Raises InputError as `parse_csv` does.
    """
    said = shown(path)
    try:
        found = path.stat()
        whole = S_ISREG(found.st_mode) and found.st_size <= MAX_BYTES
        text = path.read_text(encoding="utf-8-sig") if whole else ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{said} line {line}: byte {error.start} is not UTF-8 text; a schedule is {_FORM}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{said}: cannot be read ({why}). Legal: a file") from None
    if not S_ISREG(found.st_mode):
        what = "a directory" if S_ISDIR(found.st_mode) else "a device or a pipe"
        raise InputError(f"{said}: is {what}. Legal: a file with a line of actions a rank")
    if found.st_size > MAX_BYTES:
        raise InputError(f"{said}: {found.st_size} bytes; a schedule has at most {MAX_BYTES}")
    return parse_csv(text, name=f"file:{said}")


def _parse_line(line: str, name: str, number: int) -> Row:
    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    for position, cell in enumerate(line.split(","), 1):
        text = cell.strip()
        if text[:1] == '"' == text[-1:] and len(text) > 1:
            text = text[1:-1].strip()  # as torch's reader of CSV takes them off
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
    if not columns[0]:
        raise InputError(f"{name} line {number}: no action; each line is a rank, from rank 0 on")
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
