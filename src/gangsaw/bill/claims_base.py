"""What a checked claim is, and the quantities that several claims share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gangsaw.cost.bubble import pipeline_s
from gangsaw.cost.layer import layer_time
from gangsaw.cost.lower import cut_of, lower, schedule_code
from gangsaw.cost.types import LayerTime, Strides
from gangsaw.read.clusters import load_cluster
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.model import AttentionSpec, LayerKind, MlpSpec, ModelSpec
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe

Verdict = Literal["right", "wrong", "conditional", "unverifiable"]

CLAIM_STACK = "megatron-core-te"
"""Software generation at which compute and collectives of a claim are timed."""


@dataclass(frozen=True)
class Claim:
    """A numeric claim, recomputed.

    `usual` is the verdict of a review by hand that the three articles had before; where ours
    differs, or the review's own arithmetic does, `dispute` says why.
    """

    number: int
    article: str
    text: str
    verdict: Verdict
    arithmetic: tuple[str, ...]
    flips: str
    usual: Verdict
    dispute: str = ""


CLAIMS: list[Callable[[], Claim]] = []
"""Registered claims, in order of number."""


def claim(make: Callable[[], Claim]) -> Callable[[], Claim]:
    """Register a claim."""
    CLAIMS.append(make)
    return make


def bubble_frac(p: int, m: int, v: int = 1, schedule: str = "1f1b") -> float:
    """Idle share of a step of equal stages, forward 1, backward 2 (input 1, weights 1)."""
    idle_s = pipeline_s(
        float(schedule_code(schedule)), float(p), float(v), float(m), 1.0, 1.0, 1.0, float(p),
        float(p), 0.0,
    ) - 3.0 * m  # fmt: skip
    return idle_s / (3.0 * m + idle_s)


def gpt(hidden: int, layers: int = 1) -> ModelSpec:
    """A plain GPT block: heads of 128, MLP four times the width, no gate."""
    heads = hidden // 128
    kind = LayerKind(
        name="block",
        hidden=hidden,
        attention=AttentionSpec(heads=heads, kv_heads=heads, head_dim=128, v_head_dim=128),
        mlp=MlpSpec(ffn=4 * hidden, gated=False, activation="gelu"),
    )
    return ModelSpec(
        name=f"gpt block of width {hidden}",
        hidden=hidden,
        vocab=51200,
        kinds=(kind,),
        order=(0,) * layers,
        final_norm_params=hidden,
    )


@lru_cache(maxsize=64)
def block_time(hidden: int, seq_len: int, cluster: str, tp: int, stride: int = 1) -> LayerTime:
    """Seconds of one block and microbatch of one sequence, tensor-parallel over `tp` devices.

    `stride` is the distance of neighbours: 1 inside the fast domain, the node's size across it.
    """
    spec = load_cluster(cluster)
    job = Job(
        model=gpt(hidden),
        recipe=Recipe(seq_len=seq_len, global_batch=1),
        cluster=spec,
        stack=load_stack(CLAIM_STACK),
    )
    low = lower(job)
    cut = cut_of(Plan(tp=tp), job.recipe)
    width = float(tp * stride)
    strides = Strides(float(stride), width, width, width, width, width, width)
    return layer_time(low.kinds[0], cut, low.device, low.net, strides, low.stack)


def tp_share(time: LayerTime) -> float:
    """Tensor-parallel communication over its sum with compute, forward and backward."""
    comm = time.tp_fwd + time.tp_bwd
    return comm / (comm + time.fwd + time.bwd + time.wgrad)


def comm_over_compute(
    tp: int, flops_per_s: float, hidden: int, seq_len: int, busbw_bytes_per_s: float
) -> float:
    """Forward ratio (t-1) F / (3 h B (1 + s/6h)): all-reduces of 2 s h bytes over 24 h^2 s FLOPs.

    F is the delivered rate of a device, B the bus bandwidth; attention counted over the full
    square.
    """
    return (tp - 1) * flops_per_s / (3 * hidden * busbw_bytes_per_s * (1 + seq_len / 6 / hidden))
