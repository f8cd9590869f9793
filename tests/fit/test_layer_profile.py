"""Recorded layers as tables: what each entry is set to, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.cli.main import run
from gangsaw.cost.layer import layer_time
from gangsaw.cost.lower import cut_of, lower, stack_memory_of, strides_of
from gangsaw.cost.lower_model import kinds_of
from gangsaw.cost.memory_layers import layer_memory
from gangsaw.errors import InputError
from gangsaw.fit.layer_saved import Saved, Times
from gangsaw.fit.layer_stack import LayerJob, Recording, layer_stack, toml_of_stack
from gangsaw.fit.layer_times import Recorded, solve_times
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import list_stacks, load_stack
from gangsaw.read.toml import parse_toml, validate
from gangsaw.spec import Plan, Recipe
from gangsaw.spec.job import Job
from gangsaw.spec.stack import StackProfile
from gangsaw.trace.layer_file import read_layer

SEQ, MBS = 2048, 2
TOKENS = SEQ * MBS


def layer_job(model="gpt3-175b", cluster=None, precision="bf16", **cut):
    """One recorded layer; `cut`: fields of a plan."""
    plan = Plan(mbs=MBS, num_microbatches=1, **{"sequence_parallel": False, **cut})
    recipe = Recipe(seq_len=SEQ, global_batch=MBS, precision=precision)
    return LayerJob(load_model(model), recipe, plan, 0, cluster and load_cluster(cluster))


def korthikanti(hidden, heads, tp, scores=True):
    """The tensors of a GPT layer as arXiv:2205.05198, section 4.1, lists them, on one rank."""
    sbh = TOKENS * hidden
    rows = [
        ("input of the norm", 2 * sbh), ("input of q, k, v", 2 * sbh),
        ("queries and keys", 4 * sbh // tp), ("values", 2 * sbh // tp),
        ("input of out_proj", 2 * sbh // tp), ("attention dropout mask", sbh),
        ("input of the second norm", 2 * sbh), ("input of the MLP", 2 * sbh),
        ("activation's input", 8 * sbh // tp), ("second matrix's input", 8 * sbh // tp),
        ("MLP dropout mask", sbh),
    ]  # fmt: skip
    square = heads * SEQ * TOKENS // tp
    if scores:
        rows += [("softmax", 2 * square), ("softmax mask", square), ("values' scores", 2 * square)]
    return rows


def test_a_table_of_names_and_bytes_gives_the_entries_of_the_paper():
    """34 s b h and 5 a s s b: norms 4, plain MLP 4, masks, 5 bytes a score."""
    job = layer_job(tp=8)
    kind = job.model.kinds[0]
    rows = korthikanti(kind.hidden, kind.attention.heads, 8)
    recording = Recording(tuple(Saved(b, name) for name, b in rows), Times(), {})
    found = layer_stack("mine", recording, job)
    memory = found.stack.memory
    assert found.kept_bytes == sum(b for _, b in rows)
    assert found.counted_bytes == pytest.approx(found.kept_bytes, rel=1e-12)
    assert memory.unfused_score_bytes == pytest.approx(5.0)
    assert memory.mlp_plain_bytes == pytest.approx(4.0)
    assert memory.norm_bytes == pytest.approx(4.0)
    assert memory.dropout
    assert memory.rope_bytes == memory.qkv_copy_bytes == 0.0
    assert "megatron-lm-2021" in f"{found.base} {found.notes}"


@given(
    st.sampled_from([s for s in list_stacks() if s != "unknown"]),
    st.sampled_from(["llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"]),
    st.sampled_from([(1, False), (2, True), (4, False)]),
)
@settings(max_examples=25, deadline=None)
def test_whatever_sums_the_classes_have_the_profile_counts_them(stack, model, spread):
    """One tensor a class, as large as a profile of the catalog counts it."""
    job = layer_job(model, tp=spread[0], sequence_parallel=spread[1])
    job = LayerJob(job.model, job.recipe, job.plan, job.model.order[-1])
    kind, cut = kinds_of(job.model, job.recipe)[job.kind], cut_of(job.plan, job.recipe)
    mem = stack_memory_of(load_stack(stack))
    tokens, own = TOKENS, TOKENS // spread[0] if spread[1] else TOKENS
    inner = kind.ffn or kind.shared_ffn
    rows = [Saved(2 * own * kind.hidden, "norm", ((own, int(kind.hidden)),), "bfloat16")] * 3
    if inner:
        width = int(inner / cut.tp)
        rows += [Saved(2 * tokens * width, "mlp.act", ((tokens, width),), "bfloat16")] * 4
    if kind.experts:
        copies = int(tokens * kind.topk / (cut.tp if spread[1] else 1))
        rows += [
            Saved(2 * copies * kind.moe_ffn, "e", ((copies, int(kind.moe_ffn)),), "bfloat16"),
            Saved(2 * copies * kind.hidden, "r", ((copies, int(kind.hidden)),), "bfloat16"),
            Saved(4 * own * kind.experts, "router", ((own, int(kind.experts)),), "float32"),
        ]
    heads, dim = int(kind.heads / cut.tp), int(kind.head_dim)
    rows += [Saved(2 * tokens * heads * dim, "a", ((MBS, heads, SEQ, dim),), "bfloat16")] * 5
    found = layer_stack("mine", Recording(tuple(rows), Times(), {}), job, stack)
    assert found.counted_bytes == pytest.approx(sum(r.bytes for r in rows), rel=1e-9)
    # What the layer does not tell is the base's.
    for name in ("logit_bytes", "optimizer_bytes", "reserved_factor", "context_bytes"):
        assert getattr(found.stack.memory, name) == getattr(mem, name)
    again = validate(StackProfile, parse_toml(toml_of_stack(found), "mine"), "mine")
    assert again == found.stack
    assert layer_memory(kind, cut, stack_memory_of(again)).kept_none == pytest.approx(
        found.kept_bytes
    )


def timed(stack, cluster="h100-sxm:8", model="llama-3.1-8b"):
    plan = Plan(dp=8, mbs=MBS, num_microbatches=1)
    job = Job(
        model=load_model(model), cluster=load_cluster(cluster), stack=stack,
        recipe=Recipe(seq_len=SEQ, global_batch=8 * MBS),
    )  # fmt: skip
    return Recorded(job, plan, 0)


def seconds(recorded):
    low = lower(recorded.job)
    cut, strides = cut_of(recorded.plan, recorded.job.recipe), strides_of(recorded.plan)
    t = layer_time(low.kinds[0], cut, low.device, low.net, strides, low.stack)
    return t.fwd + t.host_fwd, t.bwd + t.wgrad + t.host_bwd


def changed(stack, **entries):
    return stack.model_copy(update={"time": stack.time.model_copy(update=entries)})


@given(st.floats(0.5, 6.0), st.sampled_from(["torchtitan", "megatron-core-te", "hf-eager"]))
@settings(max_examples=10, deadline=None)
def test_times_of_both_passes_alone_give_the_traffic(traffic, name):
    """A layer predicted with a known traffic is the measurement; from another value it is found."""
    base = load_stack(name)
    forward, backward = seconds(timed(changed(base, traffic_factor=traffic)))
    found = solve_times(timed(base), Times(forward, backward))
    assert found.values["traffic_factor"] == pytest.approx(traffic, rel=1e-3)
    assert found.notes == ()
    assert found.forward_s == pytest.approx(forward, rel=1e-3)
    assert found.backward_s == pytest.approx(backward, rel=1e-3)


def test_seconds_of_each_kind_give_an_entry_each():
    base = load_stack("torchtitan")
    plain = solve_times(timed(base), Times())
    assert plain.values == {}
    first = solve_times(timed(base), Times(products_s=9e-3, attention_s=2e-3, other_s=3e-3))
    half = solve_times(timed(base), Times(products_s=18e-3, attention_s=4e-3, other_s=6e-3))
    assert half.values["traffic_factor"] == pytest.approx(2 * first.values["traffic_factor"], 1e-3)
    # Launches and memory traffic do not scale with the rate, so not by half to the digit.
    assert half.values["gemm_factor"] == pytest.approx(first.values["gemm_factor"] / 2, rel=0.05)
    assert half.values["attention_factor"] < 0.6 * first.values["attention_factor"]


def test_the_host_of_a_forward_pass_is_the_floor_that_is_predicted():
    base = load_stack("hf-eager")
    found = solve_times(timed(base), Times(host_s=0.02))
    stack = changed(base, **found.values)
    assert seconds(timed(stack))[0] == pytest.approx(0.02)


def test_unphysical_times_are_said_and_not_swallowed():
    found = solve_times(timed(load_stack("torchtitan")), Times(20.0, 40.0))
    assert found.values["traffic_factor"] == pytest.approx(10.0)
    assert "is the layer's device the cluster's?" in found.notes[0]


def write(tmp_path, text, name="layer.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_tables_of_each_form_are_read_alike(tmp_path):
    wanted = [Saved(1024.0, "norm", ((2, 256),), "bfloat16"), Saved(2048.0, "mlp")]
    comma = "name,bytes,shape,dtype\nnorm,1024,2x256,bfloat16\nmlp,2048,,\n"
    tab = comma.replace(",", "\t")
    lines = "\n".join(
        json.dumps(row)
        for row in (
            {"op": "norm", "bytes": 1024, "shape": [2, 256], "dtype": "bfloat16"},
            {"module": "mlp", "bytes": 2048},
        )
    )
    document = json.dumps({"saved": [json.loads(line) for line in lines.splitlines()]})
    for number, text in enumerate((comma, tab, lines, document)):
        assert list(read_layer(write(tmp_path, text, f"{number}.txt")).saved) == wanted
    spaced = read_layer(write(tmp_path, "op bytes\nnorm 1024\nmlp 2048\n")).saved
    assert [(s.name, s.bytes) for s in spaced] == [("norm", 1024.0), ("mlp", 2048.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("name,size\na,3\n", "no bytes"),
        ("name,bytes\na,many\n", "is no amount"),
        ("name,bytes\na,-1\n", "is no amount"),
        ("name,bytes\na,nan\n", "is no amount"),
        ("name,bytes,shape\na,4,2xx0\n", "is no shape"),
        ('{"saved": []}', "saved is empty"),
        ('{"saved": [3]}', "is no object"),
        ('{"saved": [{"bytes": 1}], "forward": 2}', "unknown 'forward'"),
        ('{"saved": [{"bytes": 1}], "forward_s": "long"}', "forward_s='long' is no amount"),
        ('{"traceEvents": []}', "no operations of the host"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}',
         "no memory events"),
    ],
)  # fmt: skip
def test_bad_recordings_are_one_line(tmp_path, text, said):
    with pytest.raises(InputError) as error:
        read_layer(write(tmp_path, text, "layer.json"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layer_of_another_model_is_refused():
    kind = load_model("gpt3-175b").kinds[0]
    rows = korthikanti(kind.hidden, kind.attention.heads, 8)
    recording = Recording(tuple(Saved(b, name) for name, b in rows), Times(), {})
    with pytest.raises(InputError, match="has the width of the MLP, 14336"):
        layer_stack("mine", recording, layer_job("llama-3.1-8b"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no file. Legal: gangsaw calibrate RUNS.jsonl"),
        (["runs.jsonl", "--tp", "2"], "--tp belongs to --layer-trace"),
        (["runs.jsonl", "--layer-trace", "L"], "takes no RUNS.jsonl"),
        (["--suggest", "2", "--layer-trace", "L"], "takes no --suggest"),
        (["--layer-trace", "L"], "needs the model"),
        (["--layer-trace", "L", "--model", "llama-3.1-8b"], "does not state seq_len"),
        (["--layer-trace", "L", "--model", "llama-3.1-8b", "--seq-len", "0"], "--seq-len"),
        (["--layer-trace", "L", "--model", "llama-3.1-8b", "--seq-len", "64", "--mbs", "1",
          "--layer-index", "32"], "--layer-index"),
    ],
)  # fmt: skip
def test_bad_flags_are_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "name,bytes\nnorm,1024\n", "L")
    code, out, err = run(["calibrate", *words])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_kernels_of_a_trace_of_a_gpu_are_told_apart(tmp_path):
    """Allocations on the device, launches of the host, kernels by what they are."""
    ops = [("aten::mm", 100, 40), ("aten::silu", 150, 20), ("MmBackward0", 300, 50)]
    kernels = [("nvjet_hsh_128x256", 130, 200), ("flash_fwd_kernel", 340, 30),
               ("vectorized_elementwise_kernel", 380, 50), ("ncclDevKernel_AllReduce", 500, 900)]  # fmt: skip
    events = [
        {"ph": "X", "cat": "cpu_op", "name": n, "ts": t, "dur": d, "pid": 1, "tid": 1}
        for n, t, d in ops
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": n, "ts": t, "dur": d, "pid": 0, "tid": 7,
         "args": {"stream": 7}}
        for n, t, d in kernels
    ]  # fmt: skip
    events += [
        {
            "ph": "i",
            "name": "[memory]",
            "ts": t,
            "pid": 1,
            "tid": 1,
            "args": {"Addr": a, "Bytes": b},
        }
        for t, a, b in ((110, 1, 4096), (120, 2, 512), (125, 2, -512), (155, 3, 1024), (310, 4, 77))
    ]
    found = read_layer(write(tmp_path, json.dumps({"traceEvents": events}), "trace.json"))
    assert sorted(found.saved) == [Saved(1024.0, "aten::silu"), Saved(4096.0, "aten::mm")]
    assert found.times.products_s == pytest.approx(200e-6)
    assert found.times.attention_s == pytest.approx(30e-6)
    assert found.times.other_s == pytest.approx(50e-6)
    assert found.times.host_s == pytest.approx(70e-6)
