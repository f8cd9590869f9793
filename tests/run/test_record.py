"""One recorded layer -> a stack profile -> the program counts what torch kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, LlamaConfig, MixtralConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

from gangsaw.cli.main import run
from gangsaw.read.models import load_model
from gangsaw.run.model import Block, BuildOptions, rotary_table
from gangsaw.run.record import record_layer

HIDDEN, SEQ, MBS = 256, 64, 2
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": 640, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip


class Kept:
    """Bytes of the distinct storages that autograd keeps inside, written apart from `run.record`."""

    def __init__(self, *apart):
        self.skip = {t.untyped_storage().data_ptr() for t in apart}
        self.sizes, self.alive = {}, []

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self.hooks.__enter__()
        return self

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.skip:
            self.sizes[storage.data_ptr()] = storage.nbytes()
            self.alive.append(tensor)
        return tensor

    def __exit__(self, *error):
        self.hooks.__exit__(*error)
        self.total = sum(self.sizes.values())


def states(dtype=torch.bfloat16):
    return torch.randn(MBS, SEQ, HIDDEN, dtype=dtype)


def llama(attention="sdpa"):
    config = LlamaConfig(**SIZES, num_hidden_layers=1, attn_implementation=attention)
    rotary = LlamaRotaryEmbedding(config)(states(), torch.arange(SEQ)[None])
    mask = torch.full((SEQ, SEQ), -1e9).triu(1).to(torch.bfloat16)[None, None]
    words = {"position_embeddings": rotary, "attention_mask": None}
    if attention == "eager":
        words["attention_mask"] = mask
    return config, LlamaDecoderLayer(config, 0).to(torch.bfloat16), states(), words


def gpt2():
    config = GPT2Config(
        n_embd=HIDDEN, n_head=8, n_layer=1, vocab_size=1000, resid_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    return config, GPT2Block(config, 0).to(torch.bfloat16), states(), {}


def mixtral():
    config = MixtralConfig(
        **SIZES, num_hidden_layers=1, num_local_experts=4, attn_implementation="sdpa",
        experts_implementation="eager",
    )  # fmt: skip
    rotary = LlamaRotaryEmbedding(llama()[0])(states(), torch.arange(SEQ)[None])
    layer = MixtralDecoderLayer(config, 0).to(torch.bfloat16)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return config, layer, states(), {"position_embeddings": rotary, "attention_mask": None}


def own_block():
    """gangsaw's own layer in fp32: rotary in fp32 keeps other tensors than Transformers."""
    config = LlamaConfig(**SIZES, num_hidden_layers=1)
    return config, None, states(torch.float32), {}


LAYERS = {
    "llama": llama, "scores kept": lambda: llama("eager"), "gpt2": gpt2, "routed": mixtral,
    "own block": own_block,
}  # fmt: skip


def write_config(config, layers, folder):
    """A config.json of that many layers."""
    data = {**config.to_dict(), "model_type": config.model_type}
    data["n_layer" if config.model_type == "gpt2" else "num_hidden_layers"] = layers
    path = folder / f"layers{layers}.json"
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}, default=str))
    return str(path)


def recorded(make, folder):
    """The files of a recording: the layer's, and configurations of one and of two layers."""
    torch.manual_seed(0)
    config, layer, x, words = make()
    models = [write_config(config, n, folder) for n in (1, 2)]
    if layer is None:
        kind, opt = load_model(models[0]).kinds[0], BuildOptions(seq_len=SEQ)
        layer = Block(kind, rotary_table(kind.attention.head_dim, opt), opt)
    shared = [
        t for v in words.values() for t in (v if isinstance(v, tuple) else [v]) if v is not None
    ]
    x.requires_grad_()
    with Kept(*layer.parameters(), *layer.buffers(), *shared) as kept:
        kept.alive.append(layer(x, **words))
    record_layer(folder / "layer.json", layer, x, repeats=1, **words)
    return kept.total, str(folder / "layer.json"), models


TIMES = 32
"""Microbatch of the estimate over the recorded one, so that activations set the peak."""


def activations(model, stack, precision):
    words = ["estimate", model, "a100-sxm-80g:1", "--stack", stack, "--mbs", str(TIMES * MBS), "--json",
             "--global-batch", str(TIMES * MBS), "--seq-len", str(SEQ), "--precision", precision]  # fmt: skip
    code, out, err = run(words)
    assert code == 0, err
    return json.loads(out)["memory"]["per_stage"][0]["activations_bytes"]


@pytest.mark.parametrize("name", LAYERS)
def test_estimate_with_the_profile_counts_what_torch_keeps(name, tmp_path):
    kept, file, models = recorded(LAYERS[name], tmp_path)
    stack = str(tmp_path / "mine.toml")
    words = ["calibrate", "--layer-trace", file, "--model", models[0], "-o", stack, "--json"]
    code, out, err = run(words)
    assert (code, err) == (0, "")
    found = json.loads(out)["layer"]
    assert found["kept_bytes"] == kept
    precision = "fp32" if name == "own block" else "bf16"
    one, two = (activations(model, stack, precision) for model in models)
    assert two - one == pytest.approx(TIMES * kept, rel=1e-9)
    # Whatever the recording does not tell is said to come from a profile of the catalog.
    text = Path(stack).read_text()
    assert f"# from {found['base']}" in text
    assert "# measured: " in text
    assert sum(e["measured"] for e in found["entries"]) >= 7


def test_entries_are_those_that_are_known_of_each_layer(tmp_path):
    """Against tests/cost/test_memory_eager.py: 8 bytes a norm and gated MLP, 6 a score."""
    _, file, models = recorded(LAYERS["scores kept"], tmp_path)
    found = json.loads(
        run(["calibrate", "--layer-trace", file, "--model", models[0], "--json"]).out
    )
    memory, time = found["layer"]["stack"]["memory"], found["layer"]["stack"]["time"]
    assert memory["unfused_score_bytes"] == 6.0
    assert memory["mlp_gated_bytes"] == 8.0
    assert memory["norm_bytes"] == pytest.approx(8.0 + 4.0 / HIDDEN)
    # Keys and values are repeated for every head: 2 more bytes of 8 heads each, less 4 of 4 heads.
    assert memory["qkv_copy_bytes"] + memory["rope_bytes"] > 0.0
    assert time["attention_kernel"] == "unfused"
    assert (found["layer"]["base"], found["layer"]["base_by"]) == ("hf-eager", "module")


def test_memory_events_of_a_profiler_trace_sum_to_the_same(tmp_path):
    torch.manual_seed(0)
    config, layer, x, words = llama()
    x.requires_grad_()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiler:
        with torch.profiler.record_function("gangsaw:layer"):
            out = layer(x, **words)
        out.backward(torch.ones_like(out))
    trace = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(trace))
    model = write_config(config, 1, tmp_path)
    flags = ["--model", model, "--seq-len", str(SEQ), "--mbs", str(MBS), "--json"]
    code, said, err = run(["calibrate", "--layer-trace", str(trace), *flags])
    assert (code, err) == (0, "")
    by_trace = json.loads(said)["layer"]
    kept, file, _ = recorded(LAYERS["llama"], tmp_path)
    by_hooks = json.loads(run(["calibrate", "--layer-trace", file, "--model", model, "--json"]).out)
    # The trace counts the output instead of the input, and what the layer made and autograd keeps.
    assert by_trace["kept_bytes"] == pytest.approx(kept, rel=0.05)
    assert by_trace["counted_bytes"] == pytest.approx(by_trace["kept_bytes"])
    for entry in ("mlp_gated_bytes", "unfused_score_bytes"):
        own, other = (d["stack"]["memory"][entry] for d in (by_trace, by_hooks["layer"]))
        assert own == pytest.approx(other)
    assert by_trace["forward_s"] > 0.0
    assert by_trace["backward_s"] > 0.0


def test_a_recomputed_layer_is_refused(tmp_path):
    config, layer, x, words = llama()

    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layer

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False, **words)

    record_layer(tmp_path / "layer.json", Again(), x, repeats=1)
    model = write_config(config, 1, tmp_path)
    code, _, err = run(
        ["calibrate", "--layer-trace", str(tmp_path / "layer.json"), "--model", model]
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "recompute was on" in err


def test_recording_leaves_the_job_as_it_was(tmp_path):
    _, layer, x, words = llama()
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    record_layer(tmp_path / "layer.json", layer, x, repeats=1, **words)
    assert torch.equal(torch.rand(3), wanted)
    assert not x.requires_grad
    assert all(p.grad is None for p in layer.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())


def test_the_recorder_stands_alone(tmp_path):
    """Printed, copied, and run where gangsaw cannot be imported."""
    text = subprocess.run(
        [sys.executable, "-m", "gangsaw.run.record"], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "record.py").write_text(text)
    script = (
        "import sys; sys.modules['gangsaw'] = None\n"
        "import torch; from record import record_layer\n"
        "layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)\n"
        "record_layer('layer.json', layer, torch.randn(2, 16, 32), repeats=1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "layer.json").read_text())
    assert data["saved"]
    assert data["forward_s"] > 0.0
    assert (data["mbs"], data["seq_len"]) == (2, 16)
