"""Closed and full standard streams: one line, exit 1, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangsaw.cli import main, output
from gangsaw.errors import InputError, RunFailedError

PROGRAM = f"{sys.executable} -m gangsaw"
VERBS = ["--help", "--version", "model --help", "model gpt2", "model gpt2 --json", "schema model"]


def shell(line, unbuffered=""):
    return subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )


@pytest.mark.parametrize("words", ["--help", "model gpt2"])
def test_closed_output_is_one_line(words):
    done = shell(f"{PROGRAM} {words} >&-")
    assert (done.returncode, done.stderr) == (1, "gangsaw: standard output is closed\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", VERBS)
def test_full_disk_is_one_line(words, unbuffered):
    done = shell(f"{PROGRAM} {words} >/dev/full", unbuffered)
    said = "gangsaw: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_both_closed_end_cleanly():
    assert shell(f"{PROGRAM} --help >&- 2>&-").returncode == 1


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_without_standard_error_the_answer_is_there(where):
    done = shell(f"{PROGRAM} model gpt2 --json {where}")
    assert done.returncode == 0
    assert '"params": 124439808' in done.stdout
    assert shell(f"{PROGRAM} modl {where}").returncode == 2


def told(monkeypatch, body):
    monkeypatch.setattr(main, "invoke", lambda name, args: body() or 0)
    return main.run(["model", "gpt2"])


def test_file_faults_name_the_file(monkeypatch):
    monkeypatch.delenv("GANGSAW_DEBUG", raising=False)
    code, out, err = told(monkeypatch, lambda: Path("/nowhere/at/all").stat())
    assert (code, out) == (1, "")
    assert err.startswith("gangsaw: /nowhere/at/all: No such file or directory")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (InputError("wrong"), "gangsaw: wrong\n"),
        (RunFailedError("failed"), "assumed\ngangsaw: failed\n"),
    ],
)
def test_notes_do_not_stand_before_wrong_input(monkeypatch, fault, said):
    def body():
        output.note("assumed")
        raise fault

    assert told(monkeypatch, body).err == said


def test_notes_stand_before_the_answer_and_are_told_once(monkeypatch):
    def body():
        output.note("assumed")
        output.write_json({})
        output.note("wrote it")

    assert told(monkeypatch, body) == (0, "{}\n", "assumed\nwrote it\n")
    assert told(monkeypatch, lambda: None).err == ""


def test_a_file_that_ends_early_is_no_interruption(monkeypatch):
    def stop(*_):
        raise EOFError("Ran out of input")

    monkeypatch.delenv("GANGSAW_DEBUG", raising=False)
    monkeypatch.setattr("gangsaw.read.models.load_model", stop)
    code, out, err = main.run(["model", "gpt2"])
    assert (code, out) == (1, "")
    assert "a file ended too early" in err
    assert err.count("\n") == 1
