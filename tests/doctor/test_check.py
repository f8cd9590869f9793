"""Sound files give no fault, on their own and on their cluster; what cannot be judged is said."""

import json
import re
from pathlib import Path

import pytest

from gangsaw.doctor.check import CheckResult, check
from gangsaw.doctor.expressions import UNKNOWN, Evaluator, first_last_pair
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch, read_launch_text

SOUND = Path(__file__).parent / "sound"
FILES = sorted(path.name for path in SOUND.iterdir())
CLUSTERS = {
    "megatron_gpt3_175b.sh": "a100-sxm-80g:1024", "neox_20b.yml": "a100-sxm-40g:96",
    "deepspeed_zero3_llama2_13b.sh": "a100-sxm-80g:16", "nanotron_smollm.yaml": "h100-sxm:64",
    "titan_llama3_405b.py": "h100-sxm:512", "deepspeed_zero1.json": "h100-sxm:16",
    "llama_factory_qwen_lora.yaml": "rtx-4090:8", "titan_deepseek_v3.toml": "h100-sxm:512",
    "axolotl_qlora_70b.yml": "rtx-4090:8", "llama_factory_llama3_full.yaml": "a100-sxm-40g:8",
}  # fmt: skip
TIGHT = {"bridge_qwen3_30b_a3b.py": {"WS007"}, "swift_qwen25_7b.sh": {"WS024"}}
"""Sound files that eight of the devices taken here are too small, or too large, for."""


@pytest.mark.parametrize("name", FILES)
def test_a_sound_file_gives_no_fault(name):
    found = check(read_launch(SOUND / name))
    assert found.faults == ()
    assert found.rules_checked >= 25


def test_there_are_thirty_sound_files_of_several_frameworks_and_sizes():
    read = [read_launch(SOUND / name) for name in FILES]
    assert len(read) >= 30
    assert len({launch.framework for launch in read}) >= 11
    sizes = [launch.model.params() for launch in read if launch.model]
    assert min(sizes) < 2e9
    assert max(sizes) > 4e11


@pytest.mark.parametrize("name", FILES)
def test_a_sound_file_gives_no_fault_on_its_cluster(name):
    launch = read_launch(SOUND / name)
    world = launch.facts.get("world")
    if world is None:
        world = 8
    cluster = load_cluster(CLUSTERS.get(name, f"h100-sxm:{world}"))
    found = check(launch, cluster)
    assert {f.code for f in found.faults} == TIGHT.get(name, set()), found.faults
    if launch.plan is not None and launch.model is not None:
        assert found.peak_bytes > 0
        assert found.step_time_s > 0


def test_a_repair_comes_with_predicted_memory_and_time():
    text = (SOUND / "megatron_gpt3_175b.sh").read_text()
    broken = read_launch_text(text.replace("    --sequence-parallel \\\n", ""), "run.sh")
    found = check(broken, load_cluster("a100-sxm-80g:1024"))
    fault = next(f for f in found.faults if f.code == "WS005")
    assert fault.peak_change_bytes < -1e9
    assert abs(fault.step_time_change_frac) < 0.2
    assert fault.peak_bytes == pytest.approx(found.peak_bytes + fault.peak_change_bytes)


def test_faults_are_ordered_errors_first():
    text = (SOUND / "megatron_llama3_8b.sh").read_text()
    broken = text.replace("--global-batch-size $GLOBAL_BATCH_SIZE", "--global-batch-size 100")
    broken = broken.replace("--rotary-base 500000", "").replace("--swiglu", "")
    severities = [f.severity for f in check(read_launch_text(broken, "run.sh")).faults]
    order = ["error", "wrong-model", "waste"]
    assert severities == sorted(severities, key=order.index)
    assert {"error", "wrong-model"} <= set(severities)


def test_places_are_lines_of_the_file():
    text = (SOUND / "megatron_llama3_8b.sh").read_text()
    broken = text.replace("--rotary-base 500000", "--rotary-base 10000")
    fault = next(f for f in check(read_launch_text(broken, "run.sh")).faults if f.code == "WM011")
    line = int(fault.where.rsplit(":", 1)[1])
    assert "--rotary-base 10000" in broken.splitlines()[line - 1]
    assert fault.legal == (500000,)


def test_mixed_devices_and_shared_devices_are_refused_in_one_line():
    text = (
        "#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\n#SBATCH --gpus-per-node=a100:8\n"
        "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 4 --hidden-size 512"
        " --num-attention-heads 8 --micro-batch-size 1 --seq-length 128\n"
    )
    found = check(read_launch_text(text, "mixed.sh"))
    assert len([line for line in found.refused if "2 types (a100, h100)" in line]) == 1
    verl = check(read_launch(SOUND / "verl_qwen3_30b.sh"), load_cluster("h100-sxm:32"))
    assert len(verl.refused) == 1
    assert "\n" not in verl.refused[0]


def test_resolved_stages_and_grid_are_printed():
    found = check(read_launch(SOUND / "megatron_deepseek_v3.yaml"))
    assert sum(found.stages) == 61
    assert found.grid["expert_dp"] == 1
    assert found.grid["ep"] == 64


def test_the_json_has_the_keys_that_others_read():
    data = json.loads(check(read_launch(SOUND / "megatron_llama3_8b.sh")).model_dump_json())
    assert {"faults", "unread", "assumed"} <= set(data)
    text = (SOUND / "megatron_llama3_8b.sh").read_text().replace("--bf16", "")
    fault = json.loads(check(read_launch_text(text, "x.sh")).model_dump_json())["faults"][0]
    assert {"code", "severity", "where", "message", "repair", "legal"} <= set(fault)
    assert set(CheckResult.model_json_schema()["properties"]) >= {"faults", "unread", "assumed"}


def test_a_check_takes_few_estimates(monkeypatch):
    # An estimate takes some 10 ms, so a hundred are a second.
    from gangsaw.doctor import predict

    seen = []
    once = predict.estimate
    monkeypatch.setattr(predict, "estimate", lambda *args: seen.append(1) or once(*args))
    broken = (SOUND / "megatron_llama3_8b.sh").read_text()
    for flag in ("--bf16", "--swiglu", "--group-query-attention", "--rotary-base 500000"):
        broken = broken.replace(flag, "")
    found = check(read_launch_text(broken, "run.sh"), load_cluster("h100-sxm:8"))
    assert len(found.faults) >= 4
    assert len(found.faults) < len(seen) < 100


def test_conditions_on_unknown_facts_are_unknown():
    judge = Evaluator({"a": 4, "b": None}, {}, frozenset({"a"}))
    assert judge.value("b > 1") is UNKNOWN
    assert judge.value("b > 1 or a == 4") is True
    assert judge.value("b > 1 and a == 5") is False
    assert judge.value("b > 1 and a == 4") is UNKNOWN
    assert judge.value("a % 0") is UNKNOWN
    assert not judge.holds("not b")
    assert judge.value("missing('b') and stated('a') and known('a')") is True
    with pytest.raises(ValueError, match="cannot use"):
        judge.value("[x for x in a]")


@pytest.mark.parametrize(
    ("layers", "pp"), [(46, 4), (61, 4), (94, 4), (126, 16), (40, 16), (62, 8)]
)
def test_the_offered_first_and_last_stage_makes_the_middle_even(layers, pp):
    text = first_last_pair(layers, pp)
    first, last = (int(part.split()[1]) for part in text.split(","))
    assert (layers - first - last) % (pp - 2) == 0
    middle = (layers - first - last) // (pp - 2)
    assert max(first, last) - middle <= 2 or layers < 2 * pp * 2


def test_devices_that_a_file_leaves_open_are_those_of_the_cluster():
    text = (SOUND / "megatron_llama3_8b.sh").read_text()
    text = text.replace("--nproc_per_node $GPUS_PER_NODE", "--nproc_per_node 8")
    text = re.sub(r"--nnodes \S+", "--nnodes $HOW_MANY", text)
    launch = read_launch_text(text, "run.sh")
    assert launch.plan is None
    found = check(launch, load_cluster("h100-sxm:32"))
    assert found.grid["world"] == 32
    assert found.peak_bytes > 0
    assert "world" in {item.fact for item in found.assumed}


def test_overlap_that_a_file_leaves_out_costs_time():
    text = (SOUND / "megatron_gpt3_175b.sh").read_text()
    cluster = load_cluster("a100-sxm-80g:1024")
    both = [
        check(read_launch_text(body, "run.sh"), cluster).step_time_s
        for body in (
            text,
            text.replace("--overlap-grad-reduce", "").replace("--overlap-param-gather", ""),
        )
    ]
    assert both[1] > both[0]
