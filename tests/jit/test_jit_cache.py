"""Kept machine code: found again, and compiled again when the files are damaged or unwritable."""

import pytest

from gangsaw import jit, jit_cache
from gangsaw.jit import compiled, kernel, told_of_compiling


@kernel
def twice(x):
    return 2.0 * x


@kernel
def shifted(x):
    return twice(x) + 0.25


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GANGSAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fresh(monkeypatch):
    """A call as of a new process: nothing in memory, nothing said. Returns whether it compiled."""

    def call():
        monkeypatch.setattr(jit, "_compiled", {})
        monkeypatch.setattr(jit_cache, "_said", set())
        compilations = []
        with told_of_compiling(lambda: compilations.append(1)):
            assert compiled(shifted)(3.0) == 6.25
        return bool(compilations)

    return call


def kept(folder, ending):
    found = sorted(folder.rglob(f"*{ending}"))
    assert found
    return found


def test_code_is_kept_and_found(folder, fresh, capsys):
    assert fresh()
    assert not fresh()
    assert kept(folder, ".nbc")
    assert capsys.readouterr().err == ""


DAMAGES = {
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[: len(raw) // 2],
    "no pickle": lambda raw: b"\x00garbage" * 40,
    "one bit": lambda raw: raw[:-200] + bytes([raw[-200] ^ 1]) + raw[-199:],
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("ending", [".nbc", ".nbi"])
def test_damaged_files_are_made_again_with_one_line(folder, fresh, capsys, name, ending):
    assert fresh()
    for path in kept(folder, ending):
        path.write_bytes(DAMAGES[name](path.read_bytes().rjust(300, b" ")))
    assert fresh()
    err = capsys.readouterr().err
    assert "is damaged, so made again" in err
    assert str(folder) in err
    assert err.count("\n") == 1
    assert not fresh()
    assert capsys.readouterr().err == ""


def test_a_lost_data_file_is_made_again(folder, fresh):
    assert fresh()
    for path in kept(folder, ".nbc"):
        path.unlink()
    assert fresh()
    assert not fresh()


def test_a_folder_that_cannot_be_written_costs_one_line(folder, fresh, capsys):
    folder.write_text("a file stands where the folder would")
    assert fresh()
    err = capsys.readouterr().err
    assert err == f"compiled code cannot be kept in {folder}: Not a directory\n"
    assert fresh()


def test_a_changed_constant_has_another_folder(folder, fresh, monkeypatch):
    fresh()
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setattr(twice, "__defaults__", (1.5,))
    assert jit.code_hash(shifted) not in {name.removeprefix("jit-") for name in before}
