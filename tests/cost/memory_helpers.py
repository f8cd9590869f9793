"""Shapes for the memory tests, written out by hand so that no reader stands between."""

from __future__ import annotations

import numpy as np

from gangsaw.cost.lower import stack_memory_of
from gangsaw.cost.types import Cut, Ends, Kind, RankLoad, StackMem, State
from gangsaw.read.stacks import load_stack

GIB = 2.0**30


def stack(name: str, **changes: float) -> StackMem:
    return stack_memory_of(load_stack(name))._replace(**changes)


def gpt(hidden: float, heads: float, ffn: float | None = None, **changes: float) -> Kind:
    """A GPT layer: multi-head attention, plain MLP of four times the width."""
    f = 4.0 * hidden if ffn is None else ffn
    values = dict.fromkeys(Kind._fields, 0.0)
    values.update(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden / heads,
        v_head_dim=hidden / heads, causal=1.0, ffn=f, norms=2.0, tokens_frac=1.0,
        attention_params=4.0 * hidden * hidden, mlp_params=2.0 * hidden * f,
        replicated_params=4.0 * hidden, trainable_frac=1.0,
    )  # fmt: skip
    values.update(changes)
    return Kind(**values)


def llama(hidden: float, heads: float, kv_heads: float, ffn: float, **changes: float) -> Kind:
    """A LLaMA layer: grouped queries, gated MLP."""
    kv = kv_heads * hidden / heads
    return gpt(
        hidden, heads, ffn, kv_heads=kv_heads, gated=1.0,
        attention_params=2.0 * hidden * (hidden + kv), mlp_params=3.0 * hidden * ffn,
        replicated_params=2.0 * hidden, **changes,
    )  # fmt: skip


def moe(hidden: float, heads: float, experts: float, topk: float, width: float) -> Kind:
    """A routed layer with gated experts."""
    return llama(hidden, heads, heads, 0.0)._replace(
        mlp_params=0.0, experts=experts, topk=topk, moe_ffn=width,
        replicated_params=(2.0 + experts) * hidden, expert_params=experts * 3.0 * hidden * width,
    )  # fmt: skip


def ends(hidden: float, vocab: float, tied: float = 0.0) -> Ends:
    return Ends(hidden, vocab, hidden * vocab, hidden * vocab, tied, hidden, 0.0, 0.0, 0.0)


def cut(
    mbs: float = 1.0, seq_len: float = 2048.0, tp: float = 1.0, cp: float = 1.0, sp: float = 0.0,
    ep: float = 1.0, etp: float = 1.0, imbalance: float = 1.0,
) -> Cut:  # fmt: skip
    return Cut(tp, cp, ep, etp, 1.0, sp, mbs, seq_len, 2.0, 0.0, imbalance)


def state(
    pp: float = 1.0, vpp: float = 1.0, m: float = 8.0, schedule: float = 1.0,
    recompute: float = 0.0, zero: float = 1.0, shard: float = 1.0, **changes: float,
) -> State:  # fmt: skip
    base = State(
        pp=pp, vpp=vpp, m=m, schedule=schedule, recompute=recompute, recompute_layers=0.0,
        zero=zero, shard=shard, expert_shard=1.0, dp=shard, offload_optimizer=0.0,
        offload_activations=0.0,
    )  # fmt: skip
    return base._replace(**changes)


def load(rank: int, ranks: int, layers: list[float], mtp: float = 0.0) -> RankLoad:
    counts = np.array(layers, dtype=float)
    return RankLoad(
        float(rank), float(ranks), counts, counts, float(rank == 0), float(rank == ranks - 1), mtp
    )
