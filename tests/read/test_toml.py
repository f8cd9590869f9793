"""Reading documents: each wrong file gives one line, and nothing large is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.toml import parse_json, parse_toml, read_json, read_text, read_toml, validate
from gangsaw.spec.recipe import Recipe


def message(call):
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert text
    return text


def test_text_comes_back_without_its_byte_order_mark(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfname = 'x'\n")
    assert read_toml(path) == {"name": "x"}


def test_large_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(2 * 10**9)  # sparse: reading it would need 2 GB
    text = message(lambda: read_text(path))
    assert "2,000,000,000" in text
    assert "10,000,000" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1', "ends too early"),
        (b"", "empty"),
        (b"[1, 2]", "object is needed"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"PK\x03\x04\x00\x00", "binary"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_wrong_json(tmp_path, content, said):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert said in message(lambda: read_json(path))


@pytest.mark.parametrize("content", ["a = ", "[x\n", "a = 1\na = 2", "a = [" * 20000])
def test_wrong_toml(content):
    assert "not valid TOML" in message(lambda: parse_toml(content, "x.toml"))


@pytest.mark.parametrize("path", ["/", "/nonexistent/x.toml", "/dev/zero", "a\0b", "x" * 5000])
def test_paths_that_are_no_files(path):
    text = message(lambda: read_text(path))
    assert len(text) < 400
    assert "\0" not in text


def test_unknown_keys_are_listed_all():
    with pytest.raises(UnknownKeysError) as caught:
        validate(Recipe, {"seq_len": 1, "global_batch": 1, "zeta": 1, "alpha": 2}, "r.toml")
    assert str(caught.value) == "r.toml: unknown keys alpha, zeta"


def test_wrong_values_name_key_value_and_rule():
    text = message(lambda: validate(Recipe, {"seq_len": -4, "global_batch": "x"}, "r.toml"))
    assert "seq_len=-4" in text
    assert "greater than or equal to 1" in text
    assert "global_batch='x'" in text


def test_not_a_table():
    assert "r.toml" in message(lambda: validate(Recipe, [1], "r.toml"))


@given(st.text(max_size=60))
def test_any_text_parses_or_gives_one_line(text):
    for parse in (parse_toml, parse_json):
        try:
            assert isinstance(parse(text, "x"), dict)
        except InputError as error:
            assert "\n" not in str(error)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_json_round_trip(data):
    assert parse_json(json.dumps(data), "x") == data
