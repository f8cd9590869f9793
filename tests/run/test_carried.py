"""Refusals come before torch is loaded."""

from __future__ import annotations

import subprocess
import sys

from gangsaw.run.carried import ACTIVATION_NAMES
from gangsaw.run.model import ACTIVATIONS


def test_the_names_are_those_that_can_be_built():
    assert tuple(ACTIVATIONS) == ACTIVATION_NAMES


def test_what_is_wrong_is_told_without_torch(tmp_path):
    (tmp_path / "plan.toml").write_text("cp = 2\n")
    (tmp_path / "text.txt").write_text("words " * 200)
    code = (
        "import sys; from gangsaw.cli.main import run\n"
        f"out = run(['train', {str(tmp_path / 'plan.toml')!r}, '--model', 'llama-3.1-8b',"
        f" '--data', {str(tmp_path / 'text.txt')!r}])\n"
        "more = run(['measure', 'llama-3.1-8b', '--ranks', '0'])\n"
        "print(out.code, more.code, 'torch' in sys.modules, out.err.count('cp=2'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "2", "False", "1"], done.stderr
