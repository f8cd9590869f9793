"""Launch files that want to run, to grow or to break the reader."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangsaw.errors import InputError
from gangsaw.read.launch import read_launch, read_launch_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(
    f"m{i}: &m{i}\n  <<: [{', '.join([f'*m{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
TEXTS = {
    "bomb.yaml": BOMB,
    "merges.yaml": MERGES,
    "deep.yaml": "[" * 5000,
    "flow.yaml": "a: " + "{b: " * 900,
    "tag.yaml": "num_layers: !!python/object/apply:os.system ['touch /tmp/gangsaw-was-run']\ntensor_model_parallel_size: 1",
    "self.yaml": "a: &a [*a]\nbase_model: x",
    "deep.json": "[" * 100_000,
    "deepmap.json": '{"a":' * 3000 + "1" + "}" * 3000,
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,
    "chain.py": "from megatron.bridge import AutoBridge\nx = a" + ".b" * 20_000,
    "unary.py": "import torchtitan\nx = " + "-" * 50_000 + "1",
    "power.py": "import torchtitan\nx = 9**9**9**9**9\ny = [0]*10**12\n",
    "recursion.py": "import torchtitan\ndef f(n=1):\n    return f(n + 1) + f(n + 2)\nx = f()\n",
    "wide.toml": "\n".join(f"[t{i}]\nk = 1" for i in range(60_000)),
    "empty.sh": "   \n",
    "flags.sh": "python pretrain_gpt.py " + "--num-layers 1 " * 60_000,
    "double.sh": "X=aaaaaaaaaa\n" + "X=$X$X\n" * 60 + "python pretrain_gpt.py --num-layers $X",
    "calls.sh": "f() { f; f; }\nf\npython pretrain_gpt.py --num-layers 8 --micro-batch-size 1",
    "power.sh": "X=$((9**9**9**9))\npython pretrain_gpt.py --num-layers $X --micro-batch-size 1",
    "pattern.sh": "X=" + "a" * 50_000 + "\nY=${X//a*a*a*a*a*a*a*b/z}\npython pretrain_gpt.py --num-layers $Y",
    "brace.sh": "python pretrain_gpt.py --num-layers {1..1000000000} --micro-batch-size " + "{a,b}" * 30,
    "heredocs.sh": "".join(f"cat <<E{i}\n" for i in range(3000)),
    "digits.json": '{"train_batch_size": ' + "9" * 5000 + "}",
    "twice.json": '{"bf16": 1, ' + ",".join('"fp16": 1' for _ in range(20_000)) + "}",
    "merge.yaml": "x: &x {a: 1}\n" + "\n".join(f"y{i}: {{<<: [*x, *x]}}" for i in range(3000)),
    "layout.sh": "python pretrain_gpt.py --num-layers 8 --pipeline-model-parallel-layout '"
    + "(" * 100 + "t" + ")*99" * 100 + "'",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_ends_in_a_document_or_in_one_line(name):
    try:
        read_launch_text(TEXTS[name], name)
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 700


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    python = (
        "import os\nfrom megatron.bridge.recipes.common import _pretrain_common\n"
        f"os.system('touch {mark}')\n"
        f"def cfg():\n    open('{mark}', 'w')\n    c = _pretrain_common()\n"
        f"    c.model.tensor_model_parallel_size = __import__('os').system('touch {mark}')\n"
        "    c.model.pipeline_model_parallel_size = 2\n    c.train.micro_batch_size = 1\n    return c\n"
    )
    found = read_launch_text(python, "recipe.py")
    assert found.facts["pp"] == 2
    assert "tp" in {item.fact for item in found.assumed}
    read_launch_text(
        f"touch {mark}\n`touch {mark}`\npython pretrain_gpt.py --micro-batch-size $(touch {mark})",
        "x.sh",
    )
    read_launch_text(f"base_model: !!python/object/apply:os.system ['touch {mark}']", "x.yaml")
    assert not mark.exists()


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "big.sh"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    with pytest.raises(InputError, match=r"100,000,000 bytes"):
        read_launch(path)


def test_what_is_no_launch_file_is_said_in_one_line():
    with pytest.raises(InputError, match="no framework recognised"):
        read_launch_text("hello world\n", "x.txt")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(alphabet="ab${}()[]<>|&;'\"\\`#=-:/ \n\t*%,.0123456789", max_size=300),
    st.sampled_from(["x.sh", "x.yaml", "x.toml", "x.json", "x.py"]),
)
def test_any_text_gives_a_document_or_one_line(text, name):
    try:
        read_launch_text(text, name)
    except InputError as error:
        assert "\n" not in str(error)
