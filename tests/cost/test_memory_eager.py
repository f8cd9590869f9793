"""Bytes that eager PyTorch really keeps, by saved-tensor hooks and a peak tracker, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from memory_helpers import cut, ends, gpt, llama, stack
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from gangsaw.cost.memory import end_memory, layer_memory

HIDDEN, FFN, HEADS, KV, SEQ, MBS = 256, 640, 8, 4, 64, 2
TOKENS = SEQ * MBS


def saved_bytes(run: Callable[[], Any], apart: Iterable[torch.Tensor]) -> int:
    """Bytes of distinct storages that autograd keeps during `run`, those of `apart` left out."""
    skip = {t.untyped_storage().data_ptr() for t in apart}
    sizes: dict[int, int] = {}
    alive: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skip:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        alive.append(run())
    return sum(sizes.values())


def llama_config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=FFN, num_attention_heads=HEADS,
        num_key_value_heads=KV, num_hidden_layers=1, vocab_size=1000, attn_implementation="sdpa",
    )  # fmt: skip


def hidden_states() -> torch.Tensor:
    return torch.randn(MBS, SEQ, HIDDEN, dtype=torch.bfloat16, requires_grad=True)


def test_whole_llama_layer() -> None:
    config = llama_config()
    layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16)
    x = hidden_states()
    rotary = LlamaRotaryEmbedding(config)(x, torch.arange(SEQ)[None])
    kept = saved_bytes(
        lambda: layer(x, position_embeddings=rotary, attention_mask=None),
        [*layer.parameters(), *rotary],
    )
    kind = llama(HIDDEN, HEADS, KV, FFN)
    predicted = layer_memory(kind, cut(MBS, SEQ), stack("hf-eager")).kept_none
    # Beyond the widths a norm keeps one fp32 number a token.
    assert kept == predicted + 2 * 4 * TOKENS


def test_rms_norm_with_its_output() -> None:
    norm = LlamaRMSNorm(HIDDEN).to(torch.bfloat16)
    linear = nn.Linear(HIDDEN, HIDDEN, bias=False).to(torch.bfloat16)
    x = hidden_states()
    kept = saved_bytes(lambda: linear(norm(x)), [*norm.parameters(), *linear.parameters()])
    assert kept == TOKENS * (stack("hf-eager").norm_bytes * HIDDEN + 4)


def test_gated_mlp() -> None:
    mlp = LlamaMLP(llama_config()).to(torch.bfloat16)
    x = hidden_states()
    kept = saved_bytes(lambda: mlp(x), [*mlp.parameters(), x])
    assert kept == TOKENS * stack("hf-eager").mlp_gated_bytes * FFN


@pytest.mark.parametrize("activation", [nn.functional.gelu, lambda t: nn.functional.relu(t) ** 2])
def test_plain_mlp(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    up = nn.Linear(HIDDEN, FFN, bias=False).to(torch.bfloat16)
    down = nn.Linear(FFN, HIDDEN, bias=False).to(torch.bfloat16)
    x = hidden_states()
    kept = saved_bytes(lambda: down(activation(up(x))), [x, *up.parameters(), *down.parameters()])
    assert kept == TOKENS * stack("hf-eager").mlp_plain_bytes * FFN


def test_unfused_attention_with_dropout_keeps_five_bytes_a_score() -> None:
    q, k, v = (
        torch.randn(MBS, HEADS, SEQ, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )

    def attend() -> torch.Tensor:
        scores = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
        # What dropout runs on a GPU: a mask of one byte (the CPU's own keeps 16-bit noise).
        return torch.native_dropout(scores, 0.1, True)[0] @ v

    kept = saved_bytes(attend, [q, k, v])
    scores = MBS * HEADS * SEQ * SEQ
    assert kept == stack("megatron-lm-2021").unfused_score_bytes * scores
    kind = gpt(HIDDEN, HEADS)
    with_scores = layer_memory(kind, cut(MBS, SEQ), stack("megatron-lm-2021"))
    assert with_scores.kept_none - with_scores.kept_selective == 5 * scores


class Peak(TorchDispatchMode):
    """Largest sum of live storages made inside, plain tensors only."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if type(leaf) is torch.Tensor:
                storage = leaf.untyped_storage()
                self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.live = {k: v for k, v in self.live.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


VOCAB, ROWS, WIDTH = 2000, 256, 4


def loss_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(VOCAB, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return x, weight, torch.randint(0, VOCAB, (ROWS,))


@pytest.mark.parametrize(("name", "keeps"), [("hf-eager", True), ("torchtitan", False)])
def test_loss_peak(name: str, keeps: bool) -> None:
    x, weight, target = loss_inputs()
    with Peak() as tracker:
        logits = x @ weight.t()
        loss = nn.functional.cross_entropy(logits.float(), target)
        if not keeps:
            del logits
        loss.backward()
    mem = end_memory(ends(WIDTH, VOCAB), cut(1.0, ROWS), 1.0, stack(name))
    assert tracker.peak == pytest.approx(mem.loss_peak, rel=0.01)


def test_loss_peak_with_vocabulary_split_by_dtensor() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = dist.init_device_mesh("cpu", (4,))
        x, weight, target = loss_inputs()  # the weight is this rank's quarter
        with Peak() as tracker, loss_parallel():
            local = x @ weight.t()
            logits = DTensor.from_local(local, mesh, [Shard(1)], run_check=False)
            del local
            wanted = DTensor.from_local(target, mesh, [Replicate()], run_check=False)
            loss = nn.functional.cross_entropy(logits.float(), wanted)
            del logits
            loss.backward()
    finally:
        dist.destroy_process_group()
    mem = end_memory(ends(WIDTH, 4 * VOCAB), cut(1.0, ROWS, tp=4.0), 1.0, stack("torchtitan"))
    assert tracker.peak == pytest.approx(mem.loss_peak, rel=0.01)
