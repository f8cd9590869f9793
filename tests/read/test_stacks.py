"""Stack profiles by name and by file."""

import pytest

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.stacks import list_stacks, load_stack


@pytest.mark.parametrize("name", list_stacks())
def test_every_profile_of_the_catalog_loads(name):
    stack = load_stack(name)
    assert stack.name == name
    assert stack.title
    assert stack.sources


def test_name_is_read_without_case():
    assert load_stack(" Megatron-Core-TE ") == load_stack("megatron-core-te")


def test_unknown_name_gives_the_nearest():
    with pytest.raises(InputError, match="megatron-core-te"):
        load_stack("megatron-core")


def test_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\n[memory]\nlogit_bytes = 14.0\n[time]\nattention_kernel = "cudnn"\n'
    )
    stack = load_stack(str(path))
    assert (stack.name, stack.memory.logit_bytes, stack.time.attention_kernel) == (
        "mine",
        14,
        "cudnn",
    )


def test_wrong_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "Mine"\n[memory]\nlogitz = 14.0\n')
    with pytest.raises(UnknownKeysError, match=r"memory\.logitz"):
        load_stack(str(path))
    path.write_text('title = "Mine"\n[memory]\nlogit_bytes = -1.5\n')
    with pytest.raises(InputError, match=r"logit_bytes=-1\.5"):
        load_stack(str(path))
    with pytest.raises(InputError, match="no such file"):
        load_stack(str(tmp_path / "none.toml"))
