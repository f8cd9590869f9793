"""Small models and the plain single-process reference that plans are compared with."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from gangsaw.run.config import TrainConfig
from gangsaw.run.data import Batches
from gangsaw.run.model import BuildOptions, build_stage
from gangsaw.run.trainer import Trainer, whole_gradients
from gangsaw.spec import AttentionSpec, LayerKind, MlpSpec, ModelSpec, MoeSpec, Plan

VOCAB, SEQ = 64, 16
TOKENS = np.random.default_rng(7).integers(0, VOCAB, 4000)


def tiny(
    layers: int = 4,
    tied: bool = False,
    qk: str = "none",
    moe: bool = False,
    bias: bool = False,
    window: int = 0,
    heads: int = 4,
) -> ModelSpec:
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads // 2,
        head_dim=8,
        v_head_dim=8,
        qk_norm=qk,
        q_bias=bias,
        kv_bias=bias,
        window=window,
    )
    routed = MoeSpec(experts=4, topk=2, expert=MlpSpec(ffn=32)) if moe else None
    kind = LayerKind(
        name="layer",
        hidden=32,
        attention=attention,
        mlp=None if moe else MlpSpec(ffn=64),
        moe=routed,
    )
    return ModelSpec(
        name="tiny",
        hidden=32,
        vocab=VOCAB,
        kinds=(kind,),
        order=(0,) * layers,
        tied=tied,
        final_norm_params=32,
    )


def config(plan: Plan, model: ModelSpec | None = None, **more) -> TrainConfig:
    return TrainConfig(
        model=model or tiny(),
        plan=plan,
        data=("memory",),
        out=more.pop("out", "unused"),
        seq_len=SEQ,
        **more,
    )


def single(cfg: TrainConfig) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by plain autograd in one process: no mesh, no schedule, no wrappers."""
    model = build_stage(
        cfg.model, range(cfg.model.layers), (True, True), BuildOptions(SEQ, seed=cfg.seed)
    )
    x, y = Batches(TOKENS, SEQ, cfg.global_batch, cfg.seed).rows(0, 0, cfg.global_batch)
    loss = F.cross_entropy(model(torch.from_numpy(x)).flatten(0, 1), torch.from_numpy(y).flatten())
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters()}


def one_backward(cfg: TrainConfig):
    trainer = Trainer(cfg, TOKENS)
    return trainer.backward(), whole_gradients(trainer)


def differences(pool, cfg: TrainConfig) -> tuple[float, float]:
    """Largest difference to the single process of the loss and of any gradient element."""
    loss, grads = single(cfg)
    seen: set[str] = set()
    worst_loss = worst = 0.0
    for got, mine in pool.run(cfg.plan.devices, one_backward, cfg):
        worst_loss = max(worst_loss, abs(got - loss))
        for name, grad in mine.items():
            seen.add(name)
            worst = max(worst, float((grad - grads[name]).abs().max()))
    assert seen == set(grads), f"no rank holds {set(grads) - seen}"
    return worst_loss, worst
