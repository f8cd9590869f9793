"""Time of collectives over the tiers that a group really crosses.

A group is `ranks` devices at a distance of `stride` in device numbers. Inside a domain of a tier
stand k of its members; each brings its own link to the next tier, so a group with k members a
node drives k NICs and a group with one member a node drives one.

Sizes are bytes of the whole message (what each rank holds after an all-gather or before a
reduce-scatter); times are seconds, with all such groups running at once, since every device
counts only its own links.

    t = overhead + max(hops x latency, sqrt(ramp x)) + x,    x = traffic / (share x bandwidth)

`hops x latency` is what a ring costs many nodes (about 40 us a node of 8); the root is the ramp
of pipelined chunks, which halves the error of latency plus bandwidth from 1 MB to 1 GB. Rings,
double binary trees and reduction in switches as NCCL builds them, each in a full-rate and a
low-latency protocol; the fastest is taken, as its tuner does. Constants from the measured points
in tests/data/collectives.jsonl; valid from 64 kB to 16 GB on 2 to 1,440 devices.
"""

from __future__ import annotations

import math

from gangsaw.cost.types import Net
from gangsaw.jit import kernel

TREE_SHARE = 0.88
"""Rate of double binary trees over rings on the same links (2 nodes of A100, 4 of H200)."""
SWITCH_SHARE = 0.74
"""Share of the ring rate at which a device sends and receives S for a reduction in NVSwitch."""
ALL_TO_ALL_SHARE = 0.84
"""Rate of all-to-all over rings inside a domain (0.60-0.68 of the link)."""
P2P_SHARE = 0.75
"""Rate of one message over rings inside a domain (8 x A100 sendrecv: 0.58 of the link)."""
LOW_LATENCY, LOW_LATENCY_RATE = 0.7, 0.25
"""The protocol with flags in the data: share of the latency, share of the rate."""
FAN_OUT = 0.5
"""All-to-all: ramp of a domain that is spoken to, in latencies (6.5 us a node)."""


@kernel
def _gcd(a: float, b: float) -> float:
    """Greatest common divisor of whole numbers given as floats."""
    while b > 0.5:
        a, b = b, a % b
    return a


@kernel
def group_path(net: Net, ranks: float, stride: float, tier: int) -> float:
    """Members of a group that stand in one domain of a tier, in its least filled domain.

    Groups are laid end to end: one that spans S devices starts at a multiple of S, so every part
    that a boundary of a domain of D devices cuts off is a multiple of gcd(S, D) devices.
    """
    if tier >= net.size.size - 1:
        return ranks
    common = _gcd(ranks * stride, net.size[tier])
    return min(ranks, max(1.0, math.floor(common / stride)))


@kernel
def _link(net: Net, tier: int, members: float) -> float:
    """Line rate of one device, bytes/s, in a tier where `members` units of a group talk.

    In a mesh each peer has its own link, so two members use one of them.
    """
    if net.mesh[tier] > 0.0:
        return float(net.bytes_per_s[tier] * min(1.0, (members - 1.0) / net.mesh[tier]))
    return float(net.bytes_per_s[tier])


@kernel
def _faster_s(startup: float, x: float, ramp_s: float) -> float:
    """The faster protocol: full rate, or low latency. `ramp_s`: the ramp at full rate, seconds."""
    low = max(LOW_LATENCY * startup, ramp_s / math.sqrt(LOW_LATENCY_RATE)) + x / LOW_LATENCY_RATE
    return min(max(startup, ramp_s) + x, low)


@kernel
def _ring_s(net: Net, traffic: float, ranks: float, stride: float, passes: float) -> float:
    """Rings over all ranks: each of k members a domain carries 1/k of what crosses its tier.

    `traffic`: bytes through every cut of the ring; `passes`: rounds over the ring (all-reduce 2).
    """
    inner = 1.0
    x = 0.0
    startup = 0.0
    ramp_s = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            units = members / inner
            own = traffic / (inner * _link(net, tier, units) * net.efficiency[tier])
            x = max(x, own)
            ramp_s = max(ramp_s, math.sqrt(net.ramp_s[tier] * own))
            startup += passes * (ranks / inner - ranks / members) * net.latency_s[tier]
        inner = members
        if inner >= ranks:
            break
    return _faster_s(startup, x, ramp_s)


@kernel
def _tree_s(net: Net, total_bytes: float, ranks: float, stride: float) -> float:
    """All-reduce by trees between domains; inside the innermost by switch or by chain.

    Between two domains S bytes cross each way, among more 2 S through the busiest one. A switch
    that reduces lets a device send and receive S once, or twice below a tree of many domains.
    """
    inner = 1.0
    x = 0.0
    startup = 0.0
    ramp_s = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            units = members / inner
            rate = inner * _link(net, tier, units) * net.efficiency[tier]
            if net.reduction[tier] > 0.0:
                passes = 1.0 if ranks / members <= 2.0 else 2.0
                own = passes * total_bytes / (rate * SWITCH_SHARE)
                startup += 2.0 * net.latency_s[tier]
            elif tier == 0 and units < ranks:
                own = 2.0 * total_bytes * (units - 1.0) / (units * rate)
                startup += 2.0 * (units - 1.0) * net.latency_s[tier]
            else:
                crossings = 1.0 if ranks / inner <= 2.0 else 2.0
                own = crossings * total_bytes / (rate * TREE_SHARE)
                startup += 2.0 * math.ceil(math.log2(units)) * net.latency_s[tier]
            x = max(x, own)
            ramp_s = max(ramp_s, math.sqrt(net.ramp_s[tier] * own))
        inner = members
        if inner >= ranks:
            break
    return _faster_s(startup, x, ramp_s)


@kernel
def all_gather_s(
    net: Net, total_bytes: float, ranks: float, stride: float, overhead_s: float
) -> float:
    """Seconds until each of `ranks` holds all `total_bytes`, of which it held 1/ranks."""
    if ranks <= 1.0 or total_bytes <= 0.0:
        return 0.0
    return overhead_s + _ring_s(net, total_bytes * (ranks - 1.0) / ranks, ranks, stride, 1.0)


@kernel
def reduce_scatter_s(
    net: Net, total_bytes: float, ranks: float, stride: float, overhead_s: float
) -> float:
    """Seconds until each rank holds 1/ranks of the sum; the mirror image of an all-gather."""
    return all_gather_s(net, total_bytes, ranks, stride, overhead_s)


@kernel
def all_reduce_s(
    net: Net, total_bytes: float, ranks: float, stride: float, overhead_s: float
) -> float:
    """Seconds until each rank holds the sum of `total_bytes`: the faster of ring and tree."""
    if ranks <= 1.0 or total_bytes <= 0.0:
        return 0.0
    ring = _ring_s(net, 2.0 * total_bytes * (ranks - 1.0) / ranks, ranks, stride, 2.0)
    return overhead_s + min(ring, _tree_s(net, total_bytes, ranks, stride))


@kernel
def all_to_all_s(
    net: Net, bytes_per_rank: float, ranks: float, stride: float, overhead_s: float
) -> float:
    """Seconds in which each rank sends `bytes_per_rank`, 1/ranks of it to every rank.

    What leaves a domain leaves by the sender's own NIC, however many others stand there; tiers
    work at the same time, so the slowest one counts (NCCL maintainers: one device, one NIC).
    """
    if ranks <= 1.0 or bytes_per_rank <= 0.0:
        return 0.0
    inner = 1.0
    worst = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            away = bytes_per_rank * (1.0 - inner / ranks)
            rate = _link(net, tier, members / inner) * net.efficiency[tier]
            if tier == 0:
                away = bytes_per_rank * (members - 1.0) / ranks
                rate *= ALL_TO_ALL_SHARE
            x = away / rate
            ramp = FAN_OUT * net.latency_s[tier] * ranks / inner
            if tier == 0:
                ramp = max(ramp, net.ramp_s[tier])
            worst = max(worst, net.latency_s[tier] + x + math.sqrt(ramp * x))
        inner = members
        if inner >= ranks:
            break
    return overhead_s + worst


@kernel
def p2p_s(
    net: Net, message_bytes: float, stride: float, overhead_s: float, ranks: float = 2.0
) -> float:
    """Seconds to send a message to the device `stride` further, all devices sending at once.

    `ranks` in a row (pipeline stages): the slowest of the links between neighbours counts. Of k
    stages in a domain only the last one's devices leave it, so they share its uplinks.
    """
    if message_bytes <= 0.0 or ranks <= 1.0:
        return 0.0
    inner = 1.0
    worst = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            rate = _link(net, tier, 2.0) * net.efficiency[tier]
            rate *= max(1.0, min(inner, net.oversubscription[tier]))
            if tier == 0:
                rate *= P2P_SHARE
            worst = max(worst, net.latency_s[tier] + message_bytes / rate)
        inner = members
        if inner >= ranks:
            break
    return overhead_s + worst


@kernel
def _bound_s(net: Net, total_bytes: float, ranks: float, stride: float, passes: float) -> float:
    """Line rate and no latency: what must enter a domain of k members, over their k links.

    `passes` 1 for all-gather and reduce-scatter, 2 for all-reduce, where a switch that reduces
    makes it S at least.
    """
    inner = 1.0
    bound = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            rate = inner * net.bytes_per_s[tier]
            if inner == 1.0 and members < ranks:  # a device may use its outer link as well
                rate += net.bytes_per_s[tier + 1 :].max()
            traffic = passes * (1.0 - inner / ranks)
            if passes > 1.0 and net.reduction[tier] > 0.0:
                traffic = min(traffic, 1.0)
            bound = max(bound, traffic * total_bytes / rate)
        inner = members
        if inner >= ranks:
            break
    return bound


@kernel
def all_gather_bound_s(net: Net, total_bytes: float, ranks: float, stride: float) -> float:
    """No all-gather or reduce-scatter of `total_bytes` is faster than this."""
    return _bound_s(net, total_bytes, ranks, stride, 1.0) if ranks > 1.0 else 0.0


@kernel
def all_reduce_bound_s(net: Net, total_bytes: float, ranks: float, stride: float) -> float:
    """No all-reduce of `total_bytes` is faster than this."""
    return _bound_s(net, total_bytes, ranks, stride, 2.0) if ranks > 1.0 else 0.0


@kernel
def all_to_all_bound_s(net: Net, bytes_per_rank: float, ranks: float, stride: float) -> float:
    """No all-to-all in which each rank sends `bytes_per_rank` is faster than this."""
    if ranks <= 1.0:
        return 0.0
    inner = 1.0
    bound = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            sent = (members - inner) if tier == 0 else (ranks - inner)
            bound = max(bound, bytes_per_rank * sent / ranks / net.bytes_per_s[tier])
        inner = members
        if inner >= ranks:
            break
    return bound


@kernel
def p2p_bound_s(net: Net, message_bytes: float, stride: float, ranks: float = 2.0) -> float:
    """No message reaches the device `stride` further sooner than this."""
    if ranks <= 1.0:
        return 0.0
    inner = 1.0
    bound = 0.0
    for tier in range(net.size.size):
        members = max(inner, group_path(net, ranks, stride, tier))
        if members > inner:
            share = max(1.0, min(inner, net.oversubscription[tier]))
            bound = max(bound, message_bytes / (net.bytes_per_s[tier] * share))
        inner = members
        if inner >= ranks:
            break
    return bound
