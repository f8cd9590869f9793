"""The command line as others rely on it: names, flags, exit codes, one document on stdout."""

import json
import subprocess
import sys

import pytest

from gangsaw.cli import options, schema
from gangsaw.cli.main import click_command, run
from gangsaw.cli.verbs import NAMES, VERBS

RECIPE = {
    "--seq-len", "--global-batch", "--precision", "--task", "--lora-rank", "--tokens", "--stack",
    "--prices",
}  # fmt: skip
PLAN = {
    "--tp", "--cp", "--pp", "--vpp", "--dp", "--ep", "--etp", "--mbs", "--schedule", "--recompute",
    "--zero", "--shard-group", "--sequence-parallel", "--no-sequence-parallel", "--offload",
    "--stages", "--rank-order", "--plan",
}  # fmt: skip
LIMITS = {"--deadline", "--budget", "--max-devices", "--headroom", "--top", "--exhaustive"}
OUTPUT = {"--json", "--seed"}
THRESHOLD = {
    "--over", "--range", "--map", "--objective", "--energy-price", "--robust", "--html",
}  # fmt: skip
BILL = {
    "--recover",
    "--fleet",
    "--pdf",
    "--by-stage",
    "--trace",
    "--facility",
    "--facility-file",
    "--batches",
    "--per",
    "--offer",
    "--own",
    "--run",
    "--against",
    "--csv",
    "--html",
}
TRAIN = {
    "--data", "--model", "--out", "--steps", "--seq-len", "--num-microbatches", "--precision",
    "--lr", "--warmup", "--tokenizer", "--checkpoint-every", "--trace-steps", "--resume",
    "--restarts", "--sample",
}  # fmt: skip
TAIL = {
    "--failures", "--steps", "--clusters", "--slow-device", "--hot-racks", "--slow-link",
    "--background", "--routing", "--uneven", "--availability", "--recovery", "--content",
    "--layout", "--objective",
}  # fmt: skip
SITE = {"--cluster", "--stack", "--version"}
LAYER = {
    "--layer-trace", "--model", "--cluster", "--stack", "--seq-len", "--mbs", "--tp",
    "--sequence-parallel", "--no-sequence-parallel", "--precision", "--layer-index",
}  # fmt: skip
FLAGS = {
    "plan": RECIPE | PLAN | LIMITS | OUTPUT | {"--report", "--site", "--objective"},
    "estimate": RECIPE | PLAN | OUTPUT | {"--report", "--site"},
    "explain": RECIPE | OUTPUT | {"--site", "--measured"},
    "calibrate": OUTPUT | {"-o", "--out", "--suggest", "--gemm-sweep"} | LAYER,
    "timeline": RECIPE | PLAN | OUTPUT | {"--out", "--against", "--replay", "--repair", "--step"},
    "bill": RECIPE | PLAN | OUTPUT | BILL,
    "train": PLAN | OUTPUT | TRAIN,
    "threshold": RECIPE | OUTPUT | THRESHOLD,
    "tail": RECIPE | PLAN | OUTPUT | TAIL,
    "scorecard": RECIPE | OUTPUT | {"--hybrid", "--html"},
    "check": OUTPUT | SITE | {"--resume-from", "--checkpoint-format", "--saved-in"},
    "oom": OUTPUT | SITE | {"--message"},
    "export": RECIPE | PLAN | OUTPUT | {"--to", "--out"},
    "import": OUTPUT,
    "model": OUTPUT | {"--seq-len"},
    "measure": OUTPUT
    | {"--out", "--precision", "--ranks", "--seconds", "--seq-len", "--sustained"},
    "reconcile": RECIPE | PLAN | OUTPUT | {"--cluster", "--model", "--step", "--write-cluster"},
    "validate": OUTPUT | {"--calibrate"},
    "schema": OUTPUT,
}
ARGUMENTS = {
    "plan": ["model", "cluster"],
    "estimate": ["model", "cluster"],
    "explain": ["model", "cluster"],
    "timeline": ["model", "cluster"],
    "bill": ["model", "cluster"],
    "train": ["cut"],
    "threshold": ["model", "cluster", "plans"],
    "tail": ["model", "cluster", "plans"],
    "scorecard": ["model", "cluster"],
    "check": ["file"],
    "oom": ["file"],
    "export": ["model", "cluster"],
    "import": ["file"],
    "model": ["model"],
    "measure": ["model"],
    "reconcile": ["source", "predicted"],
    "validate": ["file"],
    "calibrate": ["file"],
    "schema": ["verb"],
}


def test_names_are_those_that_others_call():
    assert set(NAMES) == set(FLAGS)


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_flags_are_those_that_others_pass(name):
    command = click_command(name)
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    assert {o for o in options if o.startswith("-")} == FLAGS[name]
    assert [p.name for p in command.params if p.param_type_name == "argument"] == ARGUMENTS[name]


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_help_of_each_verb_lists_its_flags(name):
    code, out, err = run([name, "--help"])
    assert (code, err) == (0, "")
    assert all(flag in out for flag in FLAGS[name])
    assert out.isascii()


def test_help_of_the_program_lists_each_verb_and_imports_none():
    script = (
        "import sys\nfrom gangsaw.cli.main import execute\ncode = execute(['--help'])\n"
        "heavy = {'typer', 'rich', 'pydantic', 'numpy', 'numba', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    for verb in VERBS:
        assert f"  {verb.name} " in done.stdout


def test_version():
    from gangsaw import __version__

    assert run(["--version"]).out == f"gangsaw {__version__}\n"


def test_json_is_one_document_and_nothing_else():
    code, out, err = run(["model", "gpt2", "--json"])
    assert (code, err) == (0, "")
    assert json.loads(out)["params"] == 124_439_808


def test_text_in_a_pipe_is_plain_ascii_within_100_columns():
    out = run(["model", "deepseek-v3"]).out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("verb", sorted(schema.DOCUMENTS))
def test_schema_of_each_verb_is_a_schema_of_its_document(verb):
    code, out, _ = run(["schema", verb])
    found = json.loads(out)
    assert code == 0
    assert found["$schema"].startswith("https://json-schema.org/")
    assert found["type"] == "object"
    assert found["properties"]


def test_every_verb_that_has_json_has_a_schema():
    assert set(schema.DOCUMENTS) == set(NAMES) - {"schema"}


def test_the_timeline_is_the_document_of_its_schema():
    words = ["timeline", "gpt2", "h100-sxm:8", "--pp", "4", "--global-batch", "16", "--json"]
    code, out, _ = run(words)
    columns = json.loads(out)
    known = json.loads(run(["schema", "timeline"]).out)
    assert code == 0
    assert set(columns) == set(known["required"])
    against = json.loads(run([*words, "--against", "zb-h1"]).out)
    assert set(against) == {*columns, "compared"} <= set(known["properties"])
    row = known["properties"]["compared"]["items"]
    assert all(set(each) == set(row["required"]) for each in against["compared"])
    for name, column in columns.items():
        assert len(column) == len(columns["rank"]) > 0
        legal = known["properties"][name]["items"].get("enum")
        assert legal is None or set(column) <= set(legal)


def test_the_default_of_stack_is_the_one_that_the_help_names():
    out = " ".join(run(["estimate", "--help"]).out.split())
    assert f"software generation that trains [{options.DEFAULT_STACK}: a mixture]" in out
    assert "[megatron-core-te]" not in out


def test_unforeseen_failure_is_one_line_with_a_hint(monkeypatch):
    monkeypatch.delenv("GANGSAW_DEBUG", raising=False)
    monkeypatch.setattr("gangsaw.cli.main.invoke", lambda name, args: 1 // 0)
    code, out, err = run(["model", "gpt2"])
    assert (code, out) == (1, "")
    assert err.startswith("gangsaw: internal error: ZeroDivisionError")
    assert "GANGSAW_DEBUG=1" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("GANGSAW_DEBUG", "1")
    assert "Traceback" in run(["model", "gpt2"]).err


def test_interrupt_is_quiet(monkeypatch):
    def stop(name, args):
        raise KeyboardInterrupt

    monkeypatch.setattr("gangsaw.cli.main.invoke", stop)
    assert run(["model", "gpt2"]) == (130, "", "gangsaw: interrupted\n")


def test_closed_reader_is_quiet():
    words = [sys.executable, "-m", "gangsaw.cli.main", "schema", "estimate"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        err = child.stderr.read()
        assert child.wait() == 1
    assert err == b""
