"""Wrong input: exit 2, one line with the value and the rule, nothing on stdout, no traceback."""

import json

import pytest

from gangsaw.cli.main import run

M, C = "llama-3.1-405b", "h100-sxm:2048"
R = ("--seq-len", "8192", "--global-batch", "2048")
DENSE = ("estimate", M, C, *R)

# words of the command line, and what the one line must say
CASES = [
    # verbs, arguments, flags
    (("plam", M, C), ["plam", "plan", "estimate"]),
    (("estimate",), ["MODEL"]),
    (("estimate", M), ["CLUSTER"]),
    (("estimate", M, C, "extra"), ["extra"]),
    ((*DENSE, "--tpp", "8"), ["--tpp"]),
    ((*DENSE, "--tp"), ["--tp"]),
    ((*DENSE, "--tp", "8", "--tp", "4"), ["--tp", "twice"]),
    (("schema", "plans"), ["plans", "plan"]),
    (("schema", "schema"), ["schema", "timeline", "measure", "train"]),
    (("schema",), ["VERB"]),
    # numbers
    ((*DENSE, "--tp", "0"), ["--tp", "0", "1 to"]),
    ((*DENSE, "--tp", "-8"), ["--tp", "-8", "negative", "1 to"]),
    ((*DENSE, "--tp", "8.0"), ["--tp", "8.0", "whole"]),
    ((*DENSE, "--tp", "nan"), ["--tp", "nan", "whole"]),
    ((*DENSE, "--tp", "1e3"), ["--tp", "1e3", "whole"]),
    ((*DENSE, "--tp", "999999999999999999999"), ["--tp", "too large", "1 to 10,000,000"]),
    ((*DENSE, "--tp", "9" * 9000), ["--tp", "too large", "9,000 digits"]),
    ((*DENSE, "--tp", "-99999999999999999999999"), ["--tp", "negative"]),
    ((*DENSE, "--tp", "1_000"), ["--tp", "1_000", "whole"]),
    ((*DENSE, "--tp", "\u0668"), ["--tp", "whole"]),
    ((*DENSE, "--tp", ""), ["--tp", "whole"]),
    (("estimate", M, C, "--seq-len", "0"), ["--seq-len", "0"]),
    (("estimate", M, C, "--seq-len", "1000000000000"), ["--seq-len", "out of range"]),
    (("estimate", M, C, "--global-batch", "inf"), ["--global-batch", "inf"]),
    (("estimate", M, C, "--global-batch", "-1"), ["--global-batch", "-1", "negative", "1 to"]),
    ((*DENSE, "--tokens", "NaN"), ["--tokens", "NaN"]),
    ((*DENSE, "--tokens", "0"), ["--tokens", "0"]),
    ((*DENSE, "--tokens", "15 parsecs"), ["--tokens", "parsecs"]),
    ((*DENSE, "--lora-rank", "0", "--task", "lora"), ["--lora-rank", "0"]),
    ((*DENSE, "--seed", "-1"), ["--seed", "-1"]),
    ((*DENSE, "--zero", "4"), ["--zero", "4", "0 to 3"]),
    # choices
    ((*DENSE, "--precision", "bf15"), ["bf15", "bf16", "fp8"]),
    ((*DENSE, "--task", "pretraining"), ["pretraining", "pretrain", "sft"]),
    ((*DENSE, "--schedule", "2f2b"), ["2f2b", "1f1b", "gpipe"]),
    ((*DENSE, "--schedule", "PipeDream-2BW"), ["another training", "old weights", "1f1b"]),
    (("plan", M, C, *R, "--objective", "luck"), ["luck", "predictability", "expected"]),
    ((*DENSE, "--recompute", "some"), ["some", "selective", "full:N"]),
    ((*DENSE, "--recompute", "full:0"), ["full:0", "1 to", "full:N"]),
    ((*DENSE, "--recompute", "none:3"), ["none:3", "full:N"]),
    ((*DENSE, "--offload", "weights"), ["weights", "optimizer", "activations"]),
    ((*DENSE, "--recompute", "full:-2"), ["full:-2", "full:N"]),
    ((*DENSE, "--recompute", "full:127"), ["full:127", "126 layers", "full:1 to full:126"]),
    ((*DENSE, "--tp", "8", "--pp", "2", "--recompute", "full:64"), ["full:64", "2 chunks", "63"]),
    (("plan", M, C, *R, "--recompute", "full:127"), ["full:127", "126 layers"]),
    ((*DENSE, "--offload", "optimizer:2"), ["optimizer:2", "0 to 1"]),
    ((*DENSE, "--offload", "optimizer:1.5"), ["optimizer:1.5", "0 to 1"]),
    ((*DENSE, "--offload", "activations:120%"), ["activations:120%", "0 to 1"]),
    ((*DENSE, "--offload", "optimizer:nan"), ["optimizer:nan", "0 to 1"]),
    ((*DENSE, "--offload", "optimizer", "--offload", "optimizer:0.5"), ["optimizer", "twice"]),
    ((*DENSE, "--rank-order", "tp-pp-dp"), ["tp-pp-dp", "cp", "ep"]),
    ((*DENSE, "--stages", "10,,12"), ["--stages", "whole"]),
    ((*DENSE, "--stages", "126,-1", "--pp", "2"), ["--stages", "126,-1", "negative"]),
    # what cannot be meant together
    ((*DENSE, "--lora-rank", "8"), ["--lora-rank", "lora"]),
    ((*DENSE, "--pp", "1", "--vpp", "2"), ["--vpp 2", "--pp 1"]),
    ((*DENSE, "--pp", "8", "--vpp", "2", "--schedule", "1f1b"), ["1f1b", "interleaved"]),
    ((*DENSE, "--pp", "8", "--vpp", "3", "--schedule", "zb-v"), ["zb-v", "2"]),
    ((*DENSE, "--pp", "8", "--schedule", "interleaved"), ["interleaved", "--vpp"]),
    ((*DENSE, "--zero", "0", "--shard-group", "8"), ["--shard-group", "--zero"]),
    ((*DENSE, "--pp", "4", "--stages", "42,42,42"), ["3 entries", "4"]),
    ((*DENSE, "--pp", "3", "--stages", "42,42,41", "--tp", "8"), ["3"]),
    ((*DENSE, "--sequence-parallel", "--no-sequence-parallel"), ["--sequence-parallel", "twice"]),
    # shapes and the product rule
    ((*DENSE, "--tp", "6"), ["tp=6", "num_attention_heads=128", "1, 2, 4, 8"]),
    ((*DENSE, "--cp", "3"), ["cp=3", "8192", "1, 2, 4"]),
    ((*DENSE, "--tp", "256", "--pp", "1"), ["tp=256", "128"]),
    ((*DENSE, "--tp", "8", "--pp", "3"), ["pp 1, 2, 4", "2048"]),
    ((*DENSE, "--tp", "8", "--pp", "16", "--dp", "32"), ["2048", "dp here: 16"]),
    ((*DENSE, "--tp", "8", "--pp", "16", "--mbs", "3"), ["mbs", "2048", "2, 4"]),
    (("estimate", M, C, "--seq-len", "8192", "--global-batch", "100"), ["100", "2048"]),
    ((*DENSE, "--tp", "8", "--pp", "256"), ["256", "126"]),
    ((*DENSE, "--tp", "8", "--pp", "2", "--stages", "63,64"), ["127", "126"]),
    ((*DENSE, "--ep", "8"), ["ep=8", "no experts", "1"]),
    ((*DENSE, "--tp", "8", "--shard-group", "7"), ["7", "256"]),
    (("estimate", M, C, "--seq-len", "8191", "--global-batch", "2048", "--cp", "2"), ["8191"]),
    (("estimate", "mixtral-8x7b", "h100-sxm:64", *R, "--ep", "3"), ["ep=3", "8"]),
    (("estimate", "mixtral-8x7b", "h100-sxm:6", *R, "--ep", "4"), ["4", "6"]),
    # models and clusters by name
    (("model", "llama-9-999b"), ["llama-9-999b", "nearest"]),
    (("model", ""), ["MODEL", "empty"]),
    (("model", "\u6a21\u578b"), ["no model"]),
    (("model", "a" * 5000), ["no model"]),
    (("model", "nul\x00byte"), ["MODEL", "zero byte"]),
    (("estimate", M, "h100:zero", *R), ["zero", "whole number"]),
    (("estimate", M, "h100-sxm:1_000", *R), ["1_000", "whole number"]),
    (("estimate", M, "h100-sxm:1,00", *R), ["1,00", "whole number"]),
    (("estimate", M, "h100-sxm:" + "9" * 30, *R), ["too large", "1,048,576"]),
    (("estimate", M, "cluster.json", *R), ["cluster.json", "JSON", "TOML"]),
    (("estimate", M, "/tmp", *R), ["/tmp", "folder", "h100-sxm:2048"]),
    (("estimate", M, ".", *R), ["folder", "TOML"]),
    (("estimate", M, "h100-sxm:0", *R), ["devices=0", "1"]),
    (("estimate", M, "h100-sxm:-8", *R), ["devices=-8", "1"]),
    (("estimate", M, "h100-sxm:99999999999", *R), ["99999999999", "1,048,576"]),
    (("estimate", M, "warp-core:8", *R), ["warp-core", "known"]),
    (("estimate", M, "h100-sxm", *R), ["h100-sxm"]),
    ((*DENSE, "--stack", "pytorch-9"), ["pytorch-9"]),
    # limits and goals
    (("plan", M, C, *R, "--deadline", "30"), ["--deadline", "d"]),
    (("plan", M, C, *R, "--deadline", "30d"), ["--deadline", "--tokens"]),
    (("plan", M, C, *R, "--tokens", "1T", "--deadline", "-3d"), ["--deadline", "-3d"]),
    (("plan", M, C, *R, "--tokens", "1T", "--deadline", "9999y"), ["--deadline", "9999y"]),
    (("plan", M, C, *R, "--tokens", "1T", "--budget", "2e6EUR"), ["EUR", "USD"]),
    (("plan", M, C, *R, "--tokens", "1T", "--budget", "0USD"), ["--budget"]),
    (("plan", M, C, *R, "--tokens", "1T", "--budget", "-5"), ["--budget", "-5"]),
    (("plan", M, C, *R, "--budget", "2e6USD"), ["--budget", "--tokens"]),
    (("plan", M, C, *R, "--headroom", "1.5"), ["--headroom", "0 to 1"]),
    (("plan", M, C, *R, "--headroom", "100%"), ["--headroom", "100%"]),
    (("plan", M, C, *R, "--max-devices", "4096"), ["--max-devices", "2,048"]),
    (("plan", M, C, *R, "--top", "0"), ["--top", "0"]),
    (("plan", M, C, *R, "--tp", "7"), ["7"]),
    (("plan", M, C, *R, "--dp", "3"), ["3", "2048"]),
    (("plan", M, C, *R, "--ep", "2"), ["ep=2", "no experts"]),
    (("plan", M, C, *R, "--pp", "64", "--vpp", "4"), ["256", "126"]),
    (("plan", M, C, *R, "--mbs", "3"), ["3", "2048"]),
    # where the report goes
    (("plan", M, C, *R, "--report", "/nowhere/at/all/r.html"), ["--report", "/nowhere"]),
    (("plan", M, C, *R, "--report", "r.docx"), ["r.docx", ".html"]),
    (("plan", M, C, *R, "--report", "nul\x00.html"), ["--report"]),
    (("validate", "/nowhere/rows.jsonl"), ["rows.jsonl"]),
]


def check(words, said):
    code, out, err = run(words)
    assert code == 2, err
    assert out == ""
    assert err.startswith("gangsaw: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert len(err) < 1000
    for part in said:
        assert part in err, f"{part!r} is not in {err!r}"


@pytest.mark.parametrize(("words", "said"), CASES, ids=lambda v: " ".join(v)[-60:] if v else "")
def test_words(words, said):
    check(words, said)


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def without(key):
    return json.dumps({k: v for k, v in LLAMA.items() if k != key})


def changed(**values):
    return json.dumps({**LLAMA, **values})


MODEL_FILES = {
    "empty": ("", ["config.json"]),
    "truncated": (json.dumps(LLAMA)[:70], ["config.json", "JSON"]),
    "array": ("[1, 2]", ["list"]),
    "string": ('"llama"', ["str"]),
    "nan": ('{"hidden_size": NaN}', ["NaN"]),
    "no hidden": (without("hidden_size"), ["hidden_size"]),
    "no layers": (without("num_hidden_layers"), ["num_hidden_layers"]),
    "no type": (without("model_type"), ["model_type"]),
    "unknown type": (changed(model_type="warp"), ["warp"]),
    "zero layers": (changed(num_hidden_layers=0), ["num_hidden_layers", "0"]),
    "negative heads": (changed(num_attention_heads=-32), ["num_attention_heads", "-32"]),
    "text for a number": (changed(vocab_size="many"), ["vocab_size", "many"]),
    "boolean for a number": (changed(vocab_size=True), ["vocab_size"]),
    "absurd": (changed(hidden_size=10**30), ["hidden_size"]),
    "heads do not divide kv": (changed(num_key_value_heads=5), ["5"]),
    "nested deep": ("[" * 100_000 + "]" * 100_000, ["config.json"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODEL_FILES))
def test_model_files(name, tmp_path):
    text, said = MODEL_FILES[name]
    path = tmp_path / "config.json"
    path.write_text(text)
    check(("model", str(path)), said)


def test_model_that_is_a_folder(tmp_path):
    check(("model", str(tmp_path / "")), [tmp_path.name])


def test_model_that_is_binary(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(bytes(range(256)) * 64)
    check(("model", str(path)), ["config.json"])


def test_model_of_two_gigabytes(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2 * 10**9)
    check(("model", str(path)), ["2,000,000,000 bytes"])


def test_model_with_a_unicode_name_is_found_and_judged(tmp_path):
    path = tmp_path / "m\u00f6dell-\u6a21\u578b.json"
    path.write_text("{")
    check(("model", str(path)), ["JSON"])


PLAN_FILES = {
    "empty": ("", ["plan.toml", "states nothing", "tp = 8"]),
    "empty table": ("[plan]\n", ["plan", "states nothing"]),
    "comment only": ("# tp = 8\n", ["states nothing"]),
    "unknown keys": ("tensor = 8\nz = 1", ["tensor", "z"]),
    "not toml": ("tp == 8", ["TOML"]),
    "text for a number": ('tp = "eight"', ["tp", "eight"]),
    "boolean for a number": ("tp = true", ["tp"]),
    "fraction": ("tp = 8.5", ["tp", "8.5"]),
    "negative": ("pp = -4", ["pp", "-4"]),
    "nan share": ("offload_optimizer = nan", ["offload_optimizer", "nan"]),
    "recompute": ('recompute = "half"', ["half", "selective"]),
    "layers without full": ('recompute = "none"\nrecompute_layers = 3', ["recompute_layers", "full"]),
    "stages": ('stages = ["ten", 12]', ["stages", "ten"]),
    "stages number": ("stages = 12", ["stages", "12"]),
    "switch": ("sequence_parallel = 1", ["sequence_parallel", "true"]),
    "schedule": ('schedule = "spiral"', ["spiral", "1f1b"]),
    "batch": ("tp = 8\npp = 16\nnum_microbatches = 7", ["7", "2048"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLAN_FILES))
def test_plan_files(name, tmp_path):
    text, said = PLAN_FILES[name]
    path = tmp_path / "plan.toml"
    path.write_text(text)
    check((*DENSE, "--plan", str(path)), said)


ROWS = {
    "empty": ("", ["no rows"]),
    "not json": ('{"id": "a"}\n{"id":', ["line 2"]),
    "array": ("[1]", ["line 1", "list"]),
    "nan": ('{"id": NaN}', ["line 1", "NaN"]),
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_row_files(name, tmp_path):
    text, said = ROWS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    check(("validate", str(path)), said)


PRICES = {
    "negative": ('value = -2.0\nunit = "USD/device-hour"\ncurrency = "USD"', ["value", "-2"]),
    "euro": ('value = 2.0\nunit = "USD/device-hour"\ncurrency = "EUR"', ["EUR"]),
    "nan": ('value = nan\nunit = "USD/device-hour"\ncurrency = "USD"', ["nan"]),
    "no value": ('unit = "USD/device-hour"\ncurrency = "USD"', ["value"]),
}


@pytest.mark.parametrize("name", sorted(PRICES))
def test_price_files(name, tmp_path):
    text, said = PRICES[name]
    path = tmp_path / "prices.toml"
    path.write_text(f'[device_hour.h100-sxm.on-demand]\n{text}\nsource = "me"\nas_of = "2026-01"\n')
    check((*DENSE, "--prices", str(path)), said)


@pytest.mark.parametrize(
    "words",
    [("bill", "--own"), ("bill", "--run"), ("bill", "--facility-file"), ("bill", "--against"),
     ("estimate", "--site"), ("tail", "--failures"), ("scorecard", "--hybrid"), ("estimate", "--plan")],
)  # fmt: skip
def test_files_that_state_nothing(words, tmp_path):
    verb, flag = words
    path = tmp_path / "nothing.toml"
    path.write_text("# later\n")
    check((verb, M, C, *R, flag, str(path)), ["nothing.toml", "states nothing", "Legal"])


def test_plans_that_state_nothing(tmp_path):
    path = tmp_path / "nothing.toml"
    path.write_text("")
    words = ("threshold", M, C, str(path), "--over", "inter-node-bandwidth")
    check(words, ["nothing.toml", "states nothing"])


def test_notes_on_what_was_assumed_do_not_stand_before_the_fault():
    check(("scorecard", M, C, "--hybrid", "/nowhere/plan.toml"), ["plan.toml"])
    check(("tail", M, C, "/nowhere/plan.toml"), ["plan.toml"])
    words = ("timeline", M, C, "--tp", "8", "--pp", "16", "--against", "spiral")
    check(words, ["spiral"])
