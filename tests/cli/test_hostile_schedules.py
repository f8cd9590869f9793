"""Schedule files that are none: exit code 2 and one line with the place and the reason."""

import gzip
import os

import numpy as np
import pytest

from gangsaw.cli.main import run
from gangsaw.schedule import generate, to_csv

GOOD = to_csv(generate("1f1b", 4, 8))
ROWS = GOOD.splitlines()
JOB = ("timeline", "llama-3.1-8b", "h100-sxm:8", "--seq-len", "4096", "--global-batch", "16",
       "--mbs", "1", "--dp", "2")  # fmt: skip
MILLION = 1_000_000
FORM = "is not <stage><action><microbatch>"


def rows(*lines):
    return "\n".join(lines)


TEXTS = {
    # circles and orders that cannot be
    "circle of two ranks": ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "rank 0 (line 1 action 2, 0B0)"),
    "circle in a rank": ("0F0,2F0,2B0,0B0,3F0,3B0\n1F0,1B0", "deadlock: rank 0 (line 1 action 3"),
    "backward first": ("0B0,0F0", "line 1 action 1: 0B0 stands before its F"),
    "weight gradient first": ("0F0,0W0,0I0", "line 1 action 2: 0W0 stands before its I"),
    "receive without send": (
        "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", "line 2: 1RECV_F0 stands 0 times, 1 needed",
    ),
    "sent twice": (
        "0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
        "line 1: 0SEND_F0 stands 2 times, 1 needed",
    ),
    # missing and doubled
    "missing forward": (GOOD.replace("1F3,", "", 1), "line 2: stage 1 microbatch 3: F is missing"),
    "missing backward": (GOOD.replace("2B5,", "", 1), "line 3: stage 2 microbatch 5: neither B"),
    "doubled forward": (GOOD.replace("1F3,", "1F3,1F3,", 1), "line 2 action 6: 1F3 stands twice"),
    "doubled backward": (rows(ROWS[0] + ",0B7", *ROWS[1:]), "line 1 action 17: 0B7 stands twice"),
    "half a backward": ("0F0,0I0", "line 1: stage 0 microbatch 0: I and W belong together"),
    "both backwards": ("0F0,0B0,0I0,0W0", "line 1: stage 0 microbatch 0: both B and I"),
    "gap of microbatches": ("0F0,0F5,0B0,0B5", "line 1: stage 0 microbatch 1: F is missing"),
    "gap of stages": ("0F0,0B0\n5F0,5B0", "stage 1 has no action on any of 2 lines"),
    "collectives alone": ("0UNSHARD,0RESHARD", "line 1: no line has a forward"),
    # wrong ranks
    "stage on two ranks": (rows(ROWS[0], *ROWS[0:1], *ROWS[2:]), "line 1: stage 0 is also on"),
    "action on another rank": (rows(ROWS[0], ROWS[1] + ",2F9", *ROWS[2:]), "line 2: stage 2 is"),
    "rank left out": (rows(*ROWS[:2], ROWS[3]), "stage 2 has no action on any of 3 lines"),
    "rank without actions": (rows(ROWS[0], "", *ROWS[2:]), "line 2: no action; each line is a"),
    "rank too many": (GOOD + "9F0,9B0", "stage 4 has no action on any of 5 lines"),
    "a million ranks": ("0F0,0B0\n" * MILLION, "1,000,000 lines, one a rank"),
    "two directions": (to_csv(generate("dualpipe", 4, 8)), "two copies of a model in opposite"),
    # numbers
    "stage beyond all": ("999999F0,999999B0", "line 1: stage 999999. Legal: stages 0 to"),
    "microbatch beyond all": ("0F9999999,0B9999999", "(line 1) are named, which makes 10,000,000"),
    "number without end": ("9" * 40 + "F0", f"line 1 cell 1: '{'9' * 37}...' {FORM}"),
    "negative": ("-1F0,-1B0", f"line 1 cell 1: '-1F0' {FORM}"),
    "fraction": ("0F0.5", f"line 1 cell 1: '0F0.5' {FORM}"),
    "digits of another script": ("\u0660F\u0660,\u0660B\u0660", "line 1 cell 1: '\u0660F\u0660'"),
    "no microbatch": ("0F0,0B0\n1F,1B0", "line 2 cell 1: '1F': F needs a microbatch number"),
    "microbatch of a collective": ("0UNSHARD3,0F0,0B0", "line 1 cell 1: '0UNSHARD3': UNSHARD"),
    # words
    "unknown action": ("0F0,0B0\n1F0,1Q0", f"line 2 cell 2: '1Q0' {FORM}"),
    "lower case": (GOOD.lower(), f"line 1 cell 1: '0f0' {FORM}"),
    "semicolons": (GOOD.replace(",", ";"), "line 1 cell 1: "),
    "a heading": ("rank 0\n" + GOOD, f"line 1 cell 1: 'rank 0' {FORM}"),
    "json": ('{"0": ["0F0", "0B0"]}', "line 1 cell 1: "),
    "a page": ("<!doctype html>", f"line 1 cell 1: '<!doctype html>' {FORM}"),
    "escape codes": ("0F0,\x1b[31m0B0", "line 1 cell 2: '\\x1b[31m0B0'"),
    "writing backwards": ("0F0,\u202e0B0", "line 1 cell 2: '\\u202e0B0'"),
    "line of another kind": ("0F0,0B0\u20281F0,1B0", "line 1 cell 2: '0B0\\u20281F0'"),
    "open quote": ('"0F0,0B0', "line 1 cell 1: "),
    "open bracket": ("(0F0;0B0", "line 1 cell 1: '(0F0;0B0' is not (<action>;<action>)"),
    "three at once": ("(0F0;0B0;0F1)OVERLAP_F_B", "line 1 cell 1: "),
    "pair in a pair": ("((0F0;0B0)OVERLAP_F_B;0F1)OVERLAP_F_B", "line 1 cell 1: "),
    "two forwards at once": ("0F0,(0F1;0F2)OVERLAP_F_B", "line 1 cell 2: "),
    "its own backward at once": ("(0F0;0B0)OVERLAP_F_B", "line 1 action 1: 0F0 overlaps its own"),
    # much of nothing
    "empty": ("", "the file is empty"),
    "a million lines of nothing": ("\n" * MILLION, "the file is empty"),
    "a million commas": ("," * MILLION, "line 1: no action"),
    "a million letters": ("F" * MILLION, "line 1 cell 1: 'FFF"),
    "a million brackets": ("(" * MILLION, "line 1 cell 1: '((("),
    "huge row": (",".join(f"0F{i}" for i in range(100_000)), "stage 0 microbatch 0: neither B"),
}  # fmt: skip
BYTES = {
    "a million bytes": (np.random.default_rng(0).bytes(MILLION), "line 1: byte"),
    "a byte in line 3": (GOOD.replace("2F0", "\xe9", 1).encode("latin-1"), "line 3: byte"),
    "UTF-16": (GOOD.encode("utf-16"), "line 1: byte 0 is not UTF-8"),
    "UTF-16 without a mark": (GOOD.encode("utf-16-le"), "line 1 cell 1: '0\\x00F"),
    "zeros": (bytes(1000), "line 1 cell 1: '\\x00"),
    "compressed": (gzip.compress(GOOD.encode()), "line 1: byte 1 is not UTF-8"),
}


def refused(path, says):
    code, out, err = run([*JOB, "--schedule", f"file:{path}"])
    assert (code, out) == (2, "")
    assert says in err and err.count("\n") == 1 and len(err) < 700, err
    assert "Traceback" not in err and "internal" not in err


@pytest.mark.parametrize("kind", TEXTS)
def test_text_that_is_no_schedule(kind, tmp_path):
    text, says = TEXTS[kind]
    path = tmp_path / "own.csv"
    path.write_bytes(text.encode())
    refused(path, says)


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_that_are_no_text(kind, tmp_path):
    data, says = BYTES[kind]
    path = tmp_path / "own.csv"
    path.write_bytes(data)
    refused(path, says)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path, "is a directory")
    refused(tmp_path / "pipe", "is a device or a pipe")
    refused("/dev/zero", "is a device or a pipe")
    refused(tmp_path / "loop", "cannot be read")
    refused(tmp_path / "none.csv", "cannot be read (No such file")
    refused(tmp_path / ("x" * 300), "cannot be read")
    refused(f"{tmp_path}/a\nb.csv", "cannot be read")
    refused(f"{tmp_path}/a\0b.csv", "cannot be read")
    refused("", "is a directory")


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\r").encode(),
        GOOD.replace(",", " , ").encode() + b"\n\n",
        "\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in ROWS).encode(),
    ],
    ids=["mark", "CRLF", "CR", "blanks", "quotes"],
)
def test_the_same_schedule_as_other_programs_write_it(data, tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes(data)
    again = tmp_path / "again.csv"
    code, _, err = run([*JOB, "--schedule", f"file:{path}", "--out", str(again)])
    assert code == 0, err
    assert again.read_text("utf-8") == GOOD
