"""`gangsaw threshold` from files to text, document and page, and wrong inputs."""

import json

import pytest

from gangsaw.cli.main import run

JOB = ["llama-3.1-70b", "h100-sxm:256"]
RECIPE = ["--seq-len", "8192", "--global-batch", "512"]


@pytest.fixture
def plans(tmp_path):
    pipeline, sharded = tmp_path / "pipeline.toml", tmp_path / "sharded.toml"
    pipeline.write_text("tp = 2\npp = 8\nmbs = 1\n")
    sharded.write_text('zero = 3\nrecompute = "full"\nmbs = 1\nsequence_parallel = false\n')
    return [str(pipeline), str(sharded)]


def ask(plans, *flags):
    return run(["threshold", *JOB, *plans, *RECIPE, *flags])


def test_document_text_and_page_agree(plans, tmp_path):
    flags = ["--over", "intra-node-bandwidth", "--robust"]
    code, out, err = ask(plans, *flags, "--json")
    assert code == 0, err
    answer = json.loads(out)
    (pair,) = answer["pairs"]
    assert pair["plans"] == ["pipeline", "sharded"] and len(pair["curve"]) == 97
    assert sum(answer["robustness"]["win_frac"]) == pytest.approx(1)
    assert answer["plans"]["pipeline"]["pp"] == 8
    page = tmp_path / "t.html"
    code, out, err = ask(plans, *flags, "--html", str(page))
    assert code == 0, err
    assert out.isascii() and max(len(x) for x in out.splitlines()) <= 100
    assert len([x for x in out.splitlines() if " x now)" in x]) == len(pair["crossings"])
    html = page.read_text()
    assert html.count("<svg") == 1 and "src=" not in html and "href=" not in html


def test_ranking_is_among_plans_that_fit(tmp_path):
    """The fastest plan does not fit: neither draws nor shocks name it, and the text says why."""
    cuts = {"big": "tp = 4\npp = 8\n", "deep": "tp = 8\npp = 4\n", "zero": "tp = 8\nzero = 3\n"}
    for name, text in cuts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    files = [str(tmp_path / f"{name}.toml") for name in cuts]
    flags = ("--over", "inter-node-bandwidth", "--robust")
    code, out, err = ask(files, *flags, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["fits"] == {"big": "no", "deep": "yes", "zero": "yes"}
    assert {r["better_throughout"] for r in answer["pairs"] if "big" in r["plans"]} == {"big"}
    assert answer["robustness"]["plans"] == ["deep", "zero"]
    for shock in answer["shocks"]:
        assert shock["order"][-1] == "big" and shock["fits"] == ["yes", "yes", "no"]
        assert shock["objective"][2] < shock["objective"][0]
    assert any("leave out big" in note for note in answer["notes"])
    code, out, err = ask(files[:1] + files[2:], "--over", "inter-node-bandwidth")
    assert code == 0, err
    assert "does NOT fit in memory" in out and "big is faster throughout" in out


def test_map_has_a_letter_for_each_cell(plans):
    code, out, err = ask(
        plans, "--over", "device-price", "--map", "failure-rate", "--objective", "cost"
    )
    assert code == 0, err
    assert max(len(x) for x in out.splitlines()) <= 100
    rows = [x.split("|")[1] for x in out.splitlines() if " |" in x]
    assert len(rows) == 20 and all(len(r) == 60 and set(r) <= set("AB") for r in rows)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--over is missing"]),
        (["--over", "bandwidth"], ["unknown", "inter-node-bandwidth"]),
        (["--over", "device-price", "--range", "5"], ["LOW:HIGH"]),
        (["--over", "device-price", "--range", "5:1"], ["the smaller end comes first"]),
        (["--over", "device-price", "--range", "-1:1"], ["out of range"]),
        (["--over", "device-price", "--map", "device-price"], ["two different parameters"]),
        (["--over", "device-price", "--objective", "beauty"], ["time, cost"]),
        (["--over", "device-price", "--html", "x.txt"], ["no legal ending"]),
    ],
)
def test_wrong_flags_are_one_line(plans, flags, words):
    code, out, err = ask(plans, *flags)
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    for word in words:
        assert word in last


def test_one_plan_is_not_enough(plans):
    code, _, err = ask(plans[:1], "--over", "device-price")
    assert code == 2 and "two plans" in err


def test_without_plans_the_best_of_each_kind_are_compared():
    words = ["threshold", "llama-3.1-8b", "h100-sxm:32", "--seq-len", "8192", "--global-batch",
             "128", "--over", "inter-node-bandwidth", "--json"]  # fmt: skip
    code, out, err = run(words)
    assert code == 0, err
    answer = json.loads(out)
    names = set(answer["plans"])
    assert "hybrid" in names and len(names) >= 3
    shapes = [json.dumps(p, sort_keys=True) for p in answer["plans"].values()]
    assert len(set(shapes)) == len(shapes)
    assert len(answer["pairs"]) == len(names) * (len(names) - 1) // 2
    code, _, err = run(["threshold", "llama-3.1-405b", "h100-sxm:16", *words[3:]])
    assert code == 3 and "no plan of llama-3.1-405b fits h100-sxm:16" in err
    code, _, err = run(["threshold", "llama-3.1-8b", "h100-sxm:8", *words[3:]])
    assert code == 2 and "Legal: intra-node-bandwidth" in err


def test_best_at_present_is_that_of_the_plan_list():
    words = ["llama-3.1-8b", "h100-sxm:32", "--seq-len", "8192", "--global-batch", "128", "--json"]
    code, out, err = run(["plan", *words])
    assert code == 0, err
    fastest = json.loads(out)["plans"][0]
    code, out, err = run(["threshold", *words, "--over", "inter-node-bandwidth"])
    assert code == 0, err
    answer = json.loads(out)
    now = answer["pairs"][0]["now"]
    best = next(s["plan"] for s in answer["best"] if s["low"] <= now <= s["high"])
    shown = answer["plans"][best]
    assert {k: shown[k] for k in ("tp", "cp", "pp", "dp")} == {
        k: fastest["plan"][k] for k in ("tp", "cp", "pp", "dp")
    }
    for family in ("hybrid", "pipeline", "tensor", "sharded"):
        assert family in answer["plans"]
    hybrid = answer["plans"]["hybrid"]
    assert sum(hybrid[k] > 1 for k in ("tp", "cp", "pp")) + (hybrid["zero"] >= 2) >= 2


def test_price_at_which_another_cluster_is_cheaper(plans):
    words = [plans[0], f"{plans[0]}@h200-sxm:128", "--over", "device-price"]
    code, out, err = ask(words)
    assert code == 0, err
    assert "pipeline@h200-sxm:128" in out and "by cost" in out
    code, out, err = ask([*words, "--json"])
    answer = json.loads(out)
    assert answer["clusters"] == {"pipeline@h200-sxm:128": "h200-sxm:128"}
    assert answer["pairs"][0]["objective"] == "cost"
    code, out, err = ask([*plans, "--over", "energy-price"])
    assert code == 0 and "their order cannot change" in " ".join(out.split()), err
    code, _, err = ask([f"{plans[0]}@nowhere:8", "--over", "device-price"])
    assert code == 2 and "nowhere" in err
