"""AdamW with warm-up and decay, the norm of the gradients, and tied weights across stages."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gangsaw.run.config import OptimizerConfig
from gangsaw.run.model import Stage
from gangsaw.run.parallel import Place


def learning_rate(cfg: OptimizerConfig, step: int, steps: int) -> float:
    """Rate of step `step` (0..): linear warm-up, then cosine to `min_frac` of the peak."""
    if step < cfg.warmup_steps:
        return cfg.lr * (step + 1) / cfg.warmup_steps
    span = max(1, steps - cfg.warmup_steps)
    done = min(1.0, (step - cfg.warmup_steps) / span)
    low = cfg.lr * cfg.min_frac
    return low + 0.5 * (cfg.lr - low) * (1 + math.cos(math.pi * done))


def _mesh_key(param: Tensor) -> int:
    """Parameters of one mesh may be worked on together; different meshes may not."""
    return id(param.device_mesh) if isinstance(param, DTensor) else 0


def make_optimizer(params: Iterable[nn.Parameter], cfg: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over groups of one mesh each; weight decay on matrices only."""
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for p in params:
        groups.setdefault((_mesh_key(p), p.ndim > 1), []).append(p)
    decayed = [
        {"params": ps, "weight_decay": cfg.weight_decay if matrix else 0.0}
        for (_, matrix), ps in groups.items()
    ]
    # A rank of empty stages has no parameters; torch wants one group all the same.
    return torch.optim.AdamW(
        decayed or [{"params": []}],
        lr=cfg.lr,
        betas=cfg.betas,
        eps=cfg.eps,
    )


def settle_gradients(params: Iterable[nn.Parameter]) -> None:
    """Finish gradients that are still partial sums over the TP group."""
    for p in params:
        g = p.grad
        if isinstance(g, DTensor) and isinstance(p, DTensor) and g.placements != p.placements:
            p.grad = g.redistribute(placements=p.placements)


def sum_tied(stages: list[Stage], place: Place, owners: tuple[int, int]) -> None:
    """Add the gradients of an embedding and of the head that shares its numbers.

    `owners`: pipeline ranks of the first and last stage. Both end with the same sum.
    """
    first = next((s for s in stages if s.first), None)
    last = next((s for s in stages if s.last), None)
    if first is not None and last is not None:
        a, b = _grad(first, "tok_embeddings"), _grad(last, "output")
        a.add_(b)
        b.copy_(a)
        return
    mine = _grad(first, "tok_embeddings") if first is not None else None
    if last is not None:
        mine = _grad(last, "output")
    if mine is None:
        return
    group = place.group("pp")
    peer = owners[1] if first is not None else owners[0]
    other = torch.empty_like(mine)
    to = dist.get_global_rank(group, peer)
    ops = [dist.P2POp(dist.isend, mine, to, group), dist.P2POp(dist.irecv, other, to, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    mine.add_(other)


def _grad(stage: Stage, part: str) -> Tensor:
    weight = getattr(stage, part).weight
    grad = weight.grad
    return grad.to_local() if isinstance(grad, DTensor) else grad


def gradient_norm(params: list[nn.Parameter], skip: set[int], place: Place) -> Tensor:
    """Euclidean norm over the whole model; parameters whose id is in `skip` are not counted."""
    total = torch.zeros((), device=place.device, dtype=torch.float32)
    groups: dict[int, list[Tensor]] = {}
    for p in params:
        if p.grad is not None and id(p) not in skip:
            groups.setdefault(_mesh_key(p), []).append(p.grad)
    for grads in groups.values():
        norm = torch.nn.utils.get_total_norm(grads)
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        total += whole.float() ** 2
    if place.plan.pp > 1:
        dist.all_reduce(total, group=place.group("pp"))
    return total.sqrt()


def clip(params: list[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale all gradients so that their norm is at most `limit`."""
    factor = float(torch.clamp(limit / (norm + 1e-6), max=1.0))
    if factor < 1.0:
        for p in params:
            if p.grad is not None:
                local = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                local.mul_(factor)
