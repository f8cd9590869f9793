"""What the ways to bring tokens to experts cost: all-to-all, all-gather, all-reduce."""

from __future__ import annotations

from gangsaw.spec import ModelSpec, Plan
from gangsaw.spec.result import EstimateResult

PATTERNS = ("all-to-all", "all-gather", "all-reduce")


def traffic_ratio(topk: int, ep: int) -> float:
    """Bytes a token that gathering moves over those that all-to-all moves.

    All-to-all sends a token to its topk experts and back: 2 topk (ep-1)/ep hidden states, forward
    and again backward. Gathering all tokens on all ranks and reduce-scattering the sums moves
    2 (ep-1). Where every rank of the group holds the same tokens and the sums are all-reduced, a
    ring moves 2 (ep-1)/ep on each of ep ranks for one token, which is 2 (ep-1) as well. So both
    grow with ep, and all-to-all does not. Source: megatron/core/transformer/moe/README.md
    (dispatchers), core_r0.12; the ring of Patarasuk and Yuan 2009.
    """
    return ep / topk


def expert_comm_s(model: ModelSpec, plan: Plan, found: EstimateResult) -> dict[str, float]:
    """Exposed seconds a step of expert communication by pattern; {} without expert parallelism.

    All-to-all is the estimate's own; the others follow by their bytes, at equal tokens a step.
    """
    topk = next((k.moe.topk for k in model.kinds if k.moe is not None), 0)
    base = sum(c.exposed_s_per_step for c in found.collectives if c.axis == "ep")
    if plan.ep == 1 or not topk or not base:
        return {}
    more = base * traffic_ratio(topk, plan.ep)
    return {"all-to-all": base, "all-gather": more, "all-reduce": more}
