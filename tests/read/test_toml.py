"""Reading documents: each wrong file gives one line, and nothing large is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.model_toml import model_of_table
from gangsaw.read.toml import parse_json, parse_toml, read_json, read_text, read_toml, validate
from gangsaw.spec.cluster import ClusterSpec
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
    said, legal = str(caught.value).split(". Legal: ")
    assert said == "r.toml: unknown keys alpha, zeta"
    assert legal.split(", ") == list(Recipe.model_fields)


def test_legal_keys_are_those_of_the_place_of_the_unknown_one():
    tier = {"devices": 8, "bytes_per_s": 1e9, "latency_s": 1e-6}
    table = {"name": "x", "devices": 8, "tiers": [{"name": "a", **tier}, {"nam": "b", **tier}]}
    text = message(lambda: validate(ClusterSpec, table, "c.toml"))
    assert text.startswith("c.toml: unknown keys tiers.1.nam. Legal: name, devices, bytes_per_s")
    assert "usd_per_device_hour" not in text


@pytest.mark.parametrize(("value", "said"), [(True, "true"), ("4096", "'4096'")])
def test_numbers_are_not_guessed_from_flags_and_text(value, said):
    text = message(lambda: validate(Recipe, {"seq_len": value, "global_batch": 1}, "r.toml"))
    assert text == f"r.toml: seq_len={said} is no number. Legal: a number"


def test_a_fault_of_an_item_is_told_once():
    table = {"hidden": 64, "vocab": 64, "layers": [{"attention": {"heads": 1}, "mlp": {"ffn": 0}}]}
    text = message(lambda: model_of_table(table, "m.toml", "m"))
    assert text == "m.toml: layers.0.mlp.ffn=0: input should be greater than or equal to 1"


def test_a_number_beyond_whole_numbers():
    text = message(lambda: validate(Recipe, {"seq_len": 1e30, "global_batch": 1}, "r.toml"))
    assert text == "r.toml: seq_len=1e+30: out of range of whole numbers"


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
