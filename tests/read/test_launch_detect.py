"""What is no launch file is not called a sound one."""

import pytest

from gangsaw.cli.main import run

TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.txt", "We compare torchtitan and Megatron-LM.\nTorchtitan is a library.\n"),
        ("plan.toml", "pp = 2\ndp = 2\n"),
        ("any.toml", "[tool.ruff]\nline-length = 100\n"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "import"])
def test_no_framework_is_guessed(tmp_path, verb, name, text):
    path = tmp_path / name
    path.write_text(text)
    found = run([verb, str(path)])
    assert (found.code, found.out) == (2, "")
    assert "no framework recognised. Known: Megatron-LM" in found.err


def test_configurations_are_still_read(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(TITAN)
    assert "torchtitan" in run(["check", str(path)]).out
    path.write_text("tp = 8\npp = 2\n")
    assert "gangsaw" in run(["check", str(path)]).out
