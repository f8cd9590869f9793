"""A decoder in the manner of Llama, built stage by stage from the shapes of a ModelSpec.

Modules are whole (unsharded); `parallel` cuts them with torch's own styles. Parameter names carry
global layer numbers (`layers.17.attention.wq.weight`), so that a checkpoint knows nothing of the
plan that wrote it, and the initial values depend on the name and the seed only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gangsaw.errors import InputError
from gangsaw.run.carried import check_model as check_model
from gangsaw.run.moe import RoutedMlp
from gangsaw.spec.model import (
    AttentionSpec,
    LayerKind,
    MlpSpec,
    ModelSpec,
    RotaryScaling,
    RotarySpec,
)

Act = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Act] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "relu2": _relu2,
}


PLAIN_ROTARY = RotarySpec(base=10_000.0)


@dataclass(frozen=True)
class BuildOptions:
    """What is chosen beside the shapes. `recompute` none, selective or full.

    `fill=False` leaves parameters as they are allocated, for traces without storage.
    """

    seq_len: int
    seed: int = 0
    rotary: RotarySpec = PLAIN_ROTARY
    norm_eps: float = 1e-5
    recompute: str = "none"
    recompute_layers: int = 0
    device: str = "cpu"
    fill: bool = True


def rotary_of(model: ModelSpec) -> RotarySpec:
    """The model's rotary positions; where its source states none, a base of 10,000."""
    return model.rotary or PLAIN_ROTARY


def rotary_table(head_dim: int, opt: BuildOptions) -> Tensor:
    """Cosines and sines, [2, seq_len, head_dim] fp32 (Su et al. 2021, arXiv:2104.09864)."""
    freq, scale = frequencies(head_dim, opt.rotary, torch.device(opt.device))
    angle = torch.outer(torch.arange(opt.seq_len, device=opt.device).float(), freq)
    angle = torch.cat((angle, angle), dim=-1)
    return scale * torch.stack((angle.cos(), angle.sin()))


def frequencies(head_dim: int, rotary: RotarySpec, device: torch.device) -> tuple[Tensor, float]:
    """Angles a position, [head_dim / 2] fp32, and the factor on cosines and sines.

    Llama 3's scaling divides long wavelengths by the factor and passes smoothly to the short ones;
    YaRN (arXiv:2309.00071) does so between two numbers of turns and scales attention.
    """
    half = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    freq, s = rotary.base ** (-half / head_dim), rotary.scaling
    if s is None:
        return freq, 1.0
    if s.kind == "linear":
        return freq / s.factor, 1.0
    turns = s.original_positions * freq / (2.0 * math.pi)
    if s.kind == "llama3":
        keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return freq * (keep + (1.0 - keep) / s.factor), 1.0

    def place(turning: float) -> float:
        ratio = s.original_positions / (turning * 2.0 * math.pi)
        return head_dim * math.log(ratio) / (2.0 * math.log(rotary.base))

    low, high = max(0, math.floor(place(s.beta_fast))), math.ceil(place(s.beta_slow))
    high = min(high, head_dim - 1)
    ramp = (half / 2.0 - low) / max(high - low, 0.001)
    keep = 1.0 - ramp.clamp(0.0, 1.0)
    return freq * (keep + (1.0 - keep) / s.factor), _attention_scale(s)


def _attention_scale(s: RotaryScaling) -> float:
    """YaRN's factor on cosines and sines: of both stated scales their quotient."""

    def of(share: float) -> float:
        return 0.1 * share * math.log(s.factor) + 1.0 if s.factor > 1.0 else 1.0

    if s.mscale and s.mscale_all_dim:
        return of(s.mscale) / of(s.mscale_all_dim)
    return of(1.0)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, seq, head_dim] in fp32, returned in x's type."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x.float() * table[0] + turned * table[1]).type_as(x)


class Attention(nn.Module):
    """Causal grouped-query attention; heads may be a shard, their number follows the weights."""

    def __init__(self, kind: LayerKind, table: Tensor, opt: BuildOptions) -> None:
        super().__init__()
        a: AttentionSpec = kind.attention
        dim, dev = a.head_dim, opt.device
        self.head_dim, self.window = dim, a.window
        self.recompute_core = opt.recompute == "selective"
        q, kv = a.heads * dim, a.kv_heads * dim
        self.wq = nn.Linear(kind.hidden, q, bias=a.q_bias, device=dev)
        self.wk = nn.Linear(kind.hidden, kv, bias=a.kv_bias, device=dev)
        self.wv = nn.Linear(kind.hidden, kv, bias=a.kv_bias, device=dev)
        self.wo = nn.Linear(q, kind.hidden, bias=a.out_bias, device=dev)
        self.normed = a.qk_norm == "head"
        if self.normed:
            self.q_norm = nn.RMSNorm(dim, eps=opt.norm_eps, device=dev)
            self.k_norm = nn.RMSNorm(dim, eps=opt.norm_eps, device=dev)
        self.register_buffer("table", table, persistent=False)

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not 0 < self.window < q.shape[2]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        at = torch.arange(q.shape[2], device=q.device)
        gap = at[:, None] - at[None, :]
        mask = (gap >= 0) & (gap < self.window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; under TP the output is a partial sum of heads."""
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        table: Tensor = self.table[:, :s]  # type: ignore[index]
        q, k = rotate(q, table), rotate(k, table)
        if self.recompute_core and self.training:
            out = checkpoint(self._core, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            out = self._core(q, k, v)
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Dense feed-forward part, gated (SwiGLU, Shazeer 2020, arXiv:2002.05202) or plain."""

    def __init__(self, hidden: int, spec: MlpSpec, device: str) -> None:
        super().__init__()
        self.act = ACTIVATIONS[spec.activation]
        self.gated = spec.gated
        if spec.gated:
            self.w_gate = nn.Linear(hidden, spec.ffn, bias=spec.in_bias, device=device)
        self.w_in = nn.Linear(hidden, spec.ffn, bias=spec.in_bias, device=device)
        self.w_out = nn.Linear(spec.ffn, hidden, bias=spec.out_bias, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        if self.gated:
            return self.w_out(self.act(self.w_gate(x)) * self.w_in(x))  # type: ignore[no-any-return]
        return self.w_out(self.act(self.w_in(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and added to its input."""

    def __init__(self, kind: LayerKind, table: Tensor, opt: BuildOptions) -> None:
        super().__init__()
        dev = opt.device
        self.recompute = opt.recompute == "full"
        self.attention_norm = nn.RMSNorm(kind.hidden, eps=opt.norm_eps, device=dev)
        self.attention = Attention(kind, table, opt)
        self.mlp_norm = nn.RMSNorm(kind.hidden, eps=opt.norm_eps, device=dev)
        if kind.moe is not None:
            act = ACTIVATIONS[kind.moe.expert.activation]
            self.mlp: nn.Module = RoutedMlp(kind.hidden, kind.moe, act, dev)
            self.routed = True
            shared = kind.moe.shared
            self.shared = Mlp(kind.hidden, shared, dev) if shared else None
        elif kind.mlp is not None:
            self.mlp, self.routed, self.shared = Mlp(kind.hidden, kind.mlp, dev), False, None
        else:
            raise InputError(f"layer kind {kind.name!r} has neither an MLP nor experts")

    def _run(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        normed = self.mlp_norm(x)
        out: Tensor = x + self.mlp(normed)
        return out + self.shared(normed) if self.shared is not None else out

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq or its shard, hidden] to the same."""
        if self.recompute and self.training:
            out: Any = checkpoint(self._run, x, use_reentrant=False, preserve_rng_state=False)
            return out  # type: ignore[no-any-return]
        return self._run(x)


class Stage(nn.Module):
    """Consecutive layers, with the embedding in front of the first and the head behind the last.

    Input: token numbers [batch, seq] where `first`, else hidden states. Output: logits (under TP
    this rank's share of the vocabulary) where `last`, else hidden states.
    """

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.tok_embeddings: nn.Module | None = None
        self.layers = nn.ModuleDict()
        self.norm: nn.Module | None = None
        self.output: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run the stage; see the class for shapes."""
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for block in self.layers.values():
            x = block(x)
        if self.norm is not None and self.output is not None:
            return self.output(self.norm(x))  # type: ignore[no-any-return]
        # An empty stage must not hand its own input on as a leaf that autograd detaches.
        return x if len(self.layers) or self.first else x.clone()


def initialise(module: nn.Module, prefix: str, opt: BuildOptions) -> None:
    """Fill parameters: matrices normal(0, 0.02), norms one, biases zero; by name and seed."""
    if not opt.fill:
        return
    for name, param in module.named_parameters():
        with torch.no_grad():
            if param.ndim == 1:
                param.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            key = hashlib.sha256(f"{opt.seed}:{prefix}{name}".encode()).digest()
            gen = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
            param.copy_(torch.randn(param.shape, generator=gen) * 0.02)


BlockHook = Callable[[nn.Module, LayerKind], None]


def build_stage(
    spec: ModelSpec,
    layers: range,
    ends: tuple[bool, bool],
    opt: BuildOptions,
    on_block: BlockHook | None = None,
) -> Stage:
    """A stage of the layers `layers` with embedding and head as `ends` says.

    `on_block` is called with each block as soon as it is filled, so that it can be cut before
    the next one is built: at no time more than one whole block is in memory.
    """
    stage = Stage(*ends)
    dev = opt.device
    if stage.first:
        stage.tok_embeddings = nn.Embedding(spec.vocab, spec.hidden, device=dev)
        initialise(stage.tok_embeddings, "tok_embeddings.", opt)
    tables: dict[int, Tensor] = {}
    for place, index in enumerate(layers):
        kind = spec.kinds[spec.order[index]]
        dim = kind.attention.head_dim
        if dim not in tables:
            tables[dim] = rotary_table(dim, opt)
        block = Block(kind, tables[dim], opt)
        if opt.recompute == "full" and opt.recompute_layers:
            block.recompute = place < opt.recompute_layers
        initialise(block, f"layers.{index}.", opt)
        if on_block is not None:
            on_block(block, kind)
        stage.layers[str(index)] = block
    if stage.last:
        stage.norm = nn.RMSNorm(spec.hidden, eps=opt.norm_eps, device=dev)
        stage.output = nn.Linear(spec.hidden, spec.vocab, bias=False, device=dev)
        initialise(stage.norm, "norm.", opt)
        # A tied head holds the same numbers as the embedding, also where it lives elsewhere.
        initialise(stage.output, "tok_embeddings." if spec.tied else "output.", opt)
        if spec.tied and isinstance(stage.tok_embeddings, nn.Embedding):
            stage.output.weight = stage.tok_embeddings.weight
    return stage
