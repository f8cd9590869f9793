"""Claims about bubbles, collectives and links."""

from __future__ import annotations

from gangsaw.bill.claims_base import (
    Claim,
    block_time,
    bubble_frac,
    claim,
    comm_over_compute,
    gpt,
    tp_share,
)
from gangsaw.bill.value import devices_for_equal_work, idle_devices
from gangsaw.cost.collectives import all_reduce_s
from gangsaw.cost.flops import layer_flops_per_token, model_flops_per_token
from gangsaw.cost.in_flight import in_flight
from gangsaw.cost.lower import schedule_code
from gangsaw.cost.lower_cluster import net_of
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.units import DAY_S, HOUR_S

MFU = 0.5
H, S = 8192, 8192


def busbw(cluster: str, ranks: int, stride: int, total_bytes: float) -> float:
    """Bus bandwidth of an all-reduce, bytes/s: 2 (n-1)/n S over its time."""
    time_s = all_reduce_s(net_of(load_cluster(cluster)), total_bytes, ranks, stride, 0.0)
    return 2 * (ranks - 1) / ranks * total_bytes / time_s


def peak(cluster: str) -> float:
    """Dense bf16 FLOP/s of a device."""
    return load_cluster(cluster).device.peak_flops_per_s["bf16"]


def boundary_s() -> tuple[float, float]:
    """Seconds of one stage boundary on a NIC, and of the forward of 10 blocks under TP8."""
    nic = load_cluster("h100-sxm:64").tiers[1].bytes_per_s
    flops = 10 * layer_flops_per_token(gpt(H).kinds[0], S, causal=False) * S
    return 2.0 * S * H / nic, flops / 8 / (MFU * peak("h100-sxm:64"))


@claim
def idle_against_a_node() -> Claim:
    """Article 1: idle share against a node."""
    book = shipped_prices()
    reserved = book.value("device_hour.h100-sxm.reserved-1y", "USD/device-hour")
    listed = book.value("device_hour.h100-sxm.on-demand", "USD/device-hour")
    still = idle_devices(32, 0.18)
    large = idle_devices(16384, 0.18)
    return Claim(
        1,
        "1",
        "8 stages on 32 devices with 18 % idle waste more than a full node",
        "wrong" if still < 8 else "right",
        (
            f"0.18 x 32 = {still:.2f} devices: {still / 8:.2f} of a node of 8,"
            f" {still / 4:.2f} of a tray of 4",
            f"devices that make up for it: 32/0.82 - 32 = {devices_for_equal_work(32, 0.18):.2f}",
            f"${still * reserved:.1f} an hour at ${reserved}, ${still * listed * 8766 / 1e3:.0f}K a"
            f" year at ${listed}",
            f"at 16,384 devices: {large:,.0f} devices, {large / 8:.0f} nodes,"
            f" ${large * 54 * DAY_S / HOUR_S * reserved / 1e6:.1f}M in 54 days at ${reserved}",
        ),
        "right for nodes of 4 devices or fewer, for an idle share above 25 %, or for 45 devices"
        " and more",
        "wrong",
    )


@claim
def eighteen_per_cent() -> Claim:
    """Article 1: the 18 % itself."""
    base = bubble_frac(8, 32)
    rounded = [m for m in range(8, 200) if round(100 * bubble_frac(8, m)) == 18]
    least = next(m for m in range(8, 1000) if bubble_frac(8, m) <= 0.05)
    others = [
        (p, m) for p in (4, 16, 32) for m in range(p, 300) if round(100 * bubble_frac(p, m)) == 18
    ]
    shown = ", ".join(f"p={p} m={m}" for p, m in others[::3])
    return Claim(
        2,
        "1",
        "an 8-stage pipeline idles 18 % of its time",
        "conditional",
        (
            f"(p-1)/(m+p-1) at p=8, m=32: {100 * base:.2f} % of the step,"
            f" {100 * base / (1 - base):.1f} % over useful time",
            f"interleaved v=2 {100 * bubble_frac(8, 32, 2, 'interleaved'):.1f} %, v=4"
            f" {100 * bubble_frac(8, 32, 4, 'interleaved'):.1f} %, ZB-H1"
            f" {100 * bubble_frac(8, 32, 1, 'zb-h1'):.1f} %, DualPipe"
            f" {100 * bubble_frac(8, 32, 1, 'dualpipe'):.1f} %",
            f"m=16: {100 * bubble_frac(8, 16):.1f} %; 5 % needs m={least}",
            f"18 % to the nearest point at p=8: m={', '.join(map(str, rounded))}; at other depths:"
            f" {shown}",
        ),
        "another number of microbatches, interleaving or schedule: from 5 % to 30 % at p=8",
        "right",
        f"the review calls it right 'as p=8, v m=32 only'; m={rounded[0]} to {rounded[-1]} round to"
        " 18 % as well and other depths reach it too, so it is conditional on m, not a property of"
        " 8 stages",
    )


@claim
def memory_falls_with_stages() -> Claim:
    """Article 1: memory falls about linearly with stages."""
    code = float(schedule_code("1f1b"))
    gpipe = float(schedule_code("gpipe"))
    held = [in_flight(code, float(p), 1.0, 64.0, 0.0) / p for p in (2, 4, 8, 16)]
    grown = [in_flight(gpipe, 8.0, 1.0, float(m), 0.0) / 8 for m in (8, 32, 64)]
    return Claim(
        3,
        "1",
        "memory a device falls about linearly with the number of stages",
        "conditional",
        (
            "parameters, gradients, optimizer: 1/p each",
            "activations of the whole model held on stage 0 under 1F1B, p = 2, 4, 8, 16: "
            + ", ".join(f"{x:.2f}" for x in held)
            + " microbatches: p in flight times 1/p each, constant",
            "under GPipe at p=8, m = 8, 32, 64: " + ", ".join(f"{x:.0f}" for x in grown),
        ),
        "right for state and where recompute leaves few activations; wrong for activation-bound"
        " plans",
        "conditional",
    )


@claim
def collectives_a_block() -> Claim:
    """Article 1: a collective twice a block."""
    serial = block_time(H, S, "h100-sxm:8", 8)
    one_s = serial.tp_fwd / 2
    return Claim(
        4,
        "1",
        "tensor parallelism adds a collective twice per block",
        "conditional",
        (
            "forward: 2 (behind attention and behind the MLP); backward: 2 more; full recompute:"
            " 2 more; sequence parallelism: the same bytes as all-gather and reduce-scatter",
            f"TP8 of a block of width {H} on 8 H100: {2 * one_s * 1e3:.2f} ms forward,"
            f" {serial.tp_bwd * 1e3:.2f} ms backward, {serial.tp_recompute * 1e3:.2f} ms when"
            " recomputed",
        ),
        "right if only the forward pass is meant; 1 + 1 for blocks with attention and MLP in"
        " parallel",
        "right",
        "a training step has four exchanges a block, six with full recompute; a reader who budgets"
        " two is short by half",
    )


@claim
def tp_over_32() -> Claim:
    """Article 1: TP over 32 devices becomes dominant."""
    size = 2.0 * S * H
    rows = []
    ratios = []
    for label, cluster, ranks in (
        ("TP8, 8 H100, NVLink", "h100-sxm:8", 8),
        ("TP32, 4 nodes of B200", "b200:32", 32),
        ("TP32 inside an NVL72", "gb200-nvl72:72", 32),
    ):
        rate = busbw(cluster, ranks, 1, size)
        ratio = comm_over_compute(ranks, MFU * peak(cluster), H, S, rate)
        share = tp_share(block_time(H, S, cluster, ranks))
        ratios.append(ratio)
        rows.append(
            f"{label}: bus {rate / 1e9:.0f} GB/s, forward ratio {ratio:.2f}"
            f" ({100 * ratio / (1 + ratio):.0f} % of the block) at MFU 0.5; timed op by op"
            f" {100 * share:.0f} %"
        )
    causal = (1 + S / 6 / H) / (1 + S / 12 / H)
    return Claim(
        5,
        "1",
        "TP over 32 devices of a rack makes communication the dominant term",
        "right" if ratios[1] > 1 and ratios[2] > 1 else "wrong",
        (
            "ratio (t-1) F mfu / (3 h B (1 + s/6h)), h = s = 8192",
            *rows,
            f"causal attention counted as half makes each ratio {causal:.3f} times as large",
        ),
        "width: twice the h halves it; a bus above"
        f" {31 * MFU * peak('b200:32') / (3 * H * (1 + S / 6 / H)) / 1e9:,.0f} GB/s",
        "right",
    )


@claim
def four_hundred_gigabits() -> Claim:
    """Article 3: 400 Gb/s for tensor sharding."""
    size = 2.0 * S * H
    rate = busbw("h100-sxm:64", 8, 8, size)
    ratio = comm_over_compute(8, MFU * peak("h100-sxm:64"), H, S, rate)
    need = 7 * MFU * peak("h100-sxm:64") / (0.25 * 3 * H * (1 + S / 6 / H))
    wide = comm_over_compute(
        2, MFU * peak("h100-sxm:64"), 16384, S, busbw("h100-sxm:64", 2, 8, 2.0 * S * 16384)
    )
    share = tp_share(block_time(H, S, "h100-sxm:64", 8, 8))
    return Claim(
        6,
        "3",
        "400 Gb/s and more suffice for aggressive tensor sharding across nodes",
        "wrong" if ratio > 1 else "right",
        (
            f"TP8, one device a node: {rate / 1e9:.1f} of 50 GB/s reached, ratio {ratio:.1f}:"
            f" {100 * ratio / (1 + ratio):.0f} % of the block; timed op by op {100 * share:.0f} %",
            f"communication at a quarter of compute needs {need / 1e9:.0f} GB/s a device ="
            f" {need * 8 / 1e12:.1f} Tb/s",
            f"TP2 across nodes at width 16,384: ratio {wide:.2f}",
        ),
        "degree 2 and width 16,384 or more; links of about 4 Tb/s a device",
        "wrong",
    )


@claim
def bisection() -> Claim:
    """Article 3: bisection twice the gradient rate."""
    model = load_model("llama-3.1-405b")
    grads = 2.0 * model.params() / (8 * 16)
    # Table 4 of the report: 16,384 devices, 16M tokens a step, 400 TFLOP/s a device.
    flops = model_flops_per_token(model, 8192) * 8192 * 2048
    step_s = flops / (16384 * 400e12)
    rate = grads / step_s
    nic = load_cluster("h100-sxm:16384").tiers[1].bytes_per_s
    return Claim(
        7,
        "3",
        "bisection bandwidth must be at least twice the model's gradient rate",
        "conditional",
        (
            f"Llama 3.1 405B on 16,384: {flops:.3g} FLOPs a step at the 400 TFLOP/s of its report"
            f" take {step_s:.2f} s; {grads / 1e9:.2f} GB of bf16 gradients a device:"
            f" {rate / 1e9:.2f} GB/s",
            f"a ring moves twice that through each device's link: {2 * rate / 1e9:.1f} GB/s ="
            f" {200 * rate / nic:.0f} % of {nic / 1e9:.0f} GB/s; 1:7 between pods leaves"
            f" {nic / 7e9:.1f} GB/s",
            f"hidden behind backward alone (two thirds of the step): {3 * rate / 1e9:.1f} GB/s;"
            f" in a window of 5 % of the step: {2 * rate / 0.05 / 1e9:.0f} GB/s",
        ),
        "the factor belongs to each device's injection, not to the bisection; all-to-all of MoE"
        " models is what needs bisection",
        "conditional",
    )


@claim
def tp_and_gradients() -> Claim:
    """Article 3: TP raises gradient traffic."""
    model = load_model("llama-3.1-70b")
    m, t = 32, 8
    grads = 2 * 2 * model.params() / t
    activations = model.layers * 4 * (2.0 * S * model.hidden) * 2 * (t - 1) / t * m
    return Claim(
        8,
        "3",
        "tensor parallelism raises demand, above all for parameter gradients",
        "wrong" if grads < activations else "right",
        (
            f"Llama 3.1 70B, TP8: gradients {grads / 1e9:.0f} GB a device and step (bf16, ring"
            f" factor 2, divided by t), exchanges of {model.layers} blocks {activations / 1e9:,.0f}"
            f" GB at m={m} sequences of {S:,}:"
            f" {activations / grads:.0f} times as much",
        ),
        "fewer than one microbatch of short sequences a step",
        "wrong",
    )


@claim
def tp_and_bubbles() -> Claim:
    """Article 3: TP has no bubble."""
    share = tp_share(block_time(H, S, "h100-sxm:8", 8))
    return Claim(
        9,
        "3",
        "tensor parallelism eliminates pipeline bubbles",
        "right",
        (
            f"no stages, no fill; exposed collectives take their place: {100 * share:.0f} % of a"
            f" block at TP8 on 8 H100 without overlap, against {100 * bubble_frac(8, 32):.0f} % of"
            " bubble at p=8, m=32",
        ),
        "nothing; but it does not make the idle share zero",
        "right",
    )


@claim
def pipeline_traffic() -> Claim:
    """Article 1: pipeline traffic is modest."""
    size = 2.0 * S * H
    send_s, stage_s = boundary_s()
    return Claim(
        10,
        "1",
        "pipeline parallelism's traffic is modest",
        "right" if send_s < 0.1 * stage_s else "wrong",
        (
            f"{size / 1e6:.0f} MB a boundary and microbatch = {send_s * 1e3:.1f} ms on one 400 Gb/s"
            f" NIC, against {stage_s * 1e3:.1f} ms for the forward of 10 blocks under TP8 at MFU"
            f" 0.5: {100 * send_s / stage_s:.0f} %; {100 * send_s / stage_s / 8:.1f} % when each"
            " tensor rank sends its slice",
        ),
        "one block a stage and interleaving, narrow models, or links of 25 Gb/s",
        "right",
    )


@claim
def hdr_latency() -> Claim:
    """Article 3: InfiniBand HDR has lower latency."""
    saved = 1 / 25e9 - 1 / 50e9
    return Claim(
        11,
        "3",
        "InfiniBand HDR offers lower latency than RoCE",
        "conditional",
        (
            f"HDR is 200 Gb/s (2018). Against RoCE at 400 Gb/s with d more latency, RoCE wins"
            f" above d / (1/25 - 1/50 GB/s): {1e-6 / saved / 1e3:.0f} KB at 1 us,"
            f" {2e-6 / saved / 1e3:.0f} KB at 2 us",
            "a tensor-parallel exchange is 134 MB and a gradient bucket 25 MB and more",
        ),
        "right for messages under the crossing; NDR and XDR against 400 and 800 Gb/s Ethernet",
        "conditional",
    )


@claim
def microbatches_and_memory() -> Claim:
    """Article 2: more microbatches raise activation memory."""
    code = [float(schedule_code(n)) for n in ("1f1b", "gpipe")]
    held = [[in_flight(c, 8.0, 1.0, float(m), 0.0) for m in (8, 16, 64)] for c in code]
    return Claim(
        21,
        "2",
        "more microbatches raise activation memory",
        "wrong" if held[0][0] == held[0][2] else "right",
        (
            "in flight on stage 0 at p=8, m = 8, 16, 64: 1F1B "
            + ", ".join(f"{x:.0f}" for x in held[0])
            + "; GPipe "
            + ", ".join(f"{x:.0f}" for x in held[1]),
            "at a fixed global batch more microbatches are smaller ones, so memory falls",
        ),
        "GPipe and breadth-first schedules keep all of them: right there",
        "wrong",
    )


@claim
def ignoring_the_cliff() -> Claim:
    """Article 1: a configuration that ignores the cliff."""
    across = tp_share(block_time(H, S, "h100-sxm:64", 8, 8))
    inside = tp_share(block_time(H, S, "h100-sxm:8", 8))
    send_s, stage_s = boundary_s()
    return Claim(
        28,
        "1",
        "a configuration that ignores the bandwidth cliff pays 18 % or more of its device-hours",
        "conditional",
        (
            f"TP8 with one device a node: {100 * across:.0f} % of a block; the same inside a node:"
            f" {100 * inside:.0f} %; so ignoring the cliff costs"
            f" {100 * (1 - (1 - across) / (1 - inside)):.0f} % of the throughput here",
            f"pipeline parallelism across nodes: {100 * send_s / stage_s:.0f} % of a stage (see"
            " 10); data parallelism: see 7",
        ),
        "which axis crosses: tensor parallelism pays far more, pipeline and data parallelism a few"
        " per cent",
        "conditional",
    )
