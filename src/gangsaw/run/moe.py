"""Routed experts: top-k softmax routing without dropping, on torch's plain operations.

Experts are stacked in three-dimensional weights. `parallel` may cut their inner width over the
TP group (expert tensor parallel), or leave them whole on each rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gangsaw.spec.model import MoeSpec


class RoutedMlp(nn.Module):
    """The tokens go to `topk` of `experts`; weights are the softmax over the chosen logits."""

    def __init__(
        self, hidden: int, spec: MoeSpec, act: Callable[[Tensor], Tensor], device: str
    ) -> None:
        super().__init__()
        n, ffn = spec.experts, spec.expert.ffn
        self.topk, self.gated, self.act = spec.topk, spec.expert.gated, act
        self.router = nn.Linear(hidden, n, bias=False, device=device)
        if self.gated:
            self.w_gate = nn.Parameter(torch.empty(n, hidden, ffn, device=device))
        self.w_in = nn.Parameter(torch.empty(n, hidden, ffn, device=device))
        self.w_out = nn.Parameter(torch.empty(n, ffn, hidden, device=device))
        self.mesh: DeviceMesh | None = None
        self.sequence_parallel = False

    def _experts(self, x: Tensor, chosen: Tensor, weight: Tensor, mats: list[Tensor]) -> Tensor:
        out = torch.zeros_like(x)
        for e in range(mats[0].shape[0]):
            token, slot = torch.where(chosen == e)
            rows = x[token]
            inner = rows @ mats[1][e]
            inner = self.act(rows @ mats[2][e]) * inner if self.gated else self.act(inner)
            part = (inner @ mats[0][e]) * weight[token, slot, None]
            out = out.index_add(0, token, part.type_as(out))
        return out

    def _mats(self) -> list[Tensor]:
        names = ("w_out", "w_in", "w_gate") if self.gated else ("w_out", "w_in")
        return [getattr(self, n) for n in names]

    def _route(self, x: Tensor, router: Tensor) -> tuple[Tensor, Tensor]:
        logits = (x @ router.t()).float()
        top, chosen = logits.topk(self.topk, dim=-1)
        return chosen, top.softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq (or its shard under sequence parallel), hidden] to the same."""
        mats = self._mats()
        if self.mesh is None:
            flat = x.reshape(-1, x.shape[-1])
            chosen, weight = self._route(flat, self.router.weight)
            return self._experts(flat, chosen, weight, mats).view_as(x)
        return self._cut(x, mats, self.mesh)

    def _cut(self, x: Tensor, mats: list[Tensor], mesh: DeviceMesh) -> Tensor:
        """Under TP: whole tokens meet a slice of every expert; the slices' sums are partial.

        The router runs on every rank on the same tokens, so its gradients are whole on each; what
        flows through the sliced experts is partial and is summed on its way back.
        """
        where = [Shard(1)] if self.sequence_parallel else [Replicate()]
        whole = DTensor.from_local(x, mesh, where, run_check=False).redistribute(
            placements=[Replicate()]
        )
        for_router = whole.to_local()
        for_experts = whole.to_local(grad_placements=[Partial()])
        flat = for_experts.reshape(-1, x.shape[-1])
        router = self.router.weight
        router = router.to_local() if isinstance(router, DTensor) else router
        chosen, weight = self._route(for_router.reshape(flat.shape), router)
        partial_weight = DTensor.from_local(weight, mesh, [Replicate()], run_check=False).to_local(
            grad_placements=[Partial()]
        )
        local = [m.to_local() if isinstance(m, DTensor) else m for m in mats]
        out = self._experts(flat, chosen, partial_weight, local).view_as(for_experts)
        summed = DTensor.from_local(out, mesh, [Partial()], run_check=False)
        return summed.redistribute(placements=where).to_local()
