"""Bad days as text of 100 columns."""

from __future__ import annotations

from collections.abc import Callable

from gangsaw.report import words
from gangsaw.report.scorecard import wrapped
from gangsaw.search.tail_docs import (
    CheckpointRow,
    Failures,
    KeepRow,
    NetworkHealth,
    PlanTail,
    StepTail,
    TailAnswer,
)
from gangsaw.units import (
    format_bandwidth,
    format_frac,
    format_s,
    format_usd,
    significant,
)


def tail_text(answer: TailAnswer) -> str:
    """Which plan is best by what, then each plan: steps, failures, checkpoints, network."""
    out = [f"A bad day of {answer.model} on {answer.cluster}"]
    if len(answer.plans) > 1:
        out += ["", *ranking_lines(answer)]
    for plan in answer.plans:
        out += ["", *wrapped(f"{plan.name}: {words.in_words(plan.plan)}", "")]
        out += [*step_lines(plan.step), "", *failure_lines(plan.failures)]
        out += ["", *checkpoint_lines(plan.failures), "", *network_lines(plan.network)]
        out += ["", *keep_lines(plan)]
    out.append("")
    for note in answer.notes:
        out += wrapped(f"note: {note}", "")
    return "\n".join(out)


def ranking_lines(answer: TailAnswer) -> list[str]:
    """A row a plan; the best of each column is marked."""
    head = f"{'plan':<16}{'estimate':>10}{'mean':>10}{'P50':>10}{'P95':>10}{'P99':>10}"
    out = [f"{head}{'P95/P50':>9}{'with failures':>15}"]
    by_name = {p.name: p for p in answer.plans}
    for name in answer.order:
        p = by_name[name]
        cells = [
            ("estimate", p.step.estimate_s), ("mean", p.step.mean_s),
            *zip(("p50", "p95", "p99"), (x.step_s for x in p.step.percentiles), strict=True),
        ]  # fmt: skip
        row = f"{name[:15]:<16}"
        row += "".join(
            f"{significant(v, 4) + (' s*' if answer.best[k] == name else ' s '):>10}"
            for k, v in cells
        )
        sure = "*" if answer.best["predictability"] == name else " "
        cost = "*" if answer.best["cost"] == name else " "
        row += (
            f"{p.step.p95_over_p50:>8.3f}{sure}{significant(p.expected_step_s, 4) + ' s':>14}{cost}"
        )
        out.append(row)
    changed = "is not" if answer.order_changes else "is"
    out.append(f"* best; ordered by {answer.objective}, which {changed} the order of the estimates")
    return out


def step_lines(step: StepTail) -> list[str]:
    """The distribution of the step."""
    parts = [f"mean {_within(step.mean_s, step.mean_error_s)}"]
    parts += [f"P{100 * p.at_frac:.0f} {_within(p.step_s, p.error_s)}" for p in step.percentiles]
    out = wrapped(f"step: estimate {format_s(step.estimate_s)}; {', '.join(parts)}", "")
    out.append(
        f"  {step.draws:,} steps of {step.clusters} draws of the cluster, seed {step.seed};"
        f" P95/P50 {step.p95_over_p50:.3f}"
    )
    out.append(
        f"  {step.lock_step_devices:,} devices go in lock-step, {step.replicas:,} replicas side"
        " by side"
    )
    out += wrapped("added by axis: " + _shares(step.added_s_by_axis, format_s), "  ")
    out += wrapped("variance by axis: " + _shares(step.variance_by_axis, format_frac), "  ")
    out += wrapped(
        "variance that goes with a source (negative: it hides others): "
        + _shares(step.variance_by_source, format_frac),
        "  ",
    )
    price = format_usd(step.slow_device_usd_per_h)
    out += wrapped(
        f"one device slower by {format_frac(step.slow_device_frac)}: step"
        f" +{format_s(step.slow_device_mean_s)} in the mean, +{format_s(step.slow_device_worst_s)}"
        f" at worst, {price} an hour",
        "  ",
    )
    return out


def _within(value: float, error: float) -> str:
    return f"{significant(value, 4)} s (+-{significant(error, 2)})"


def _shares(parts: dict[str, float], write: Callable[[float], str]) -> str:
    # Adding 0.0 after rounding makes no "-0.0 %" of a share that is nothing.
    return ", ".join(f"{name} {write(round(value, 9) + 0.0)}" for name, value in parts.items())


def failure_lines(f: Failures) -> list[str]:
    """Rates, blast radius, strategies, spares, spot."""
    out = [f"failures: one every {format_s(f.mtbf_s)} of the job"]
    for k in sorted(f.kinds, key=lambda k: k.mtbf_s):
        what = f"{k.hosts} host(s) replaced" if k.replaced else "same machines go on"
        out.append(
            f"  {k.name:<10}every {format_s(k.mtbf_s):>9}   {what:<22}"
            f"back after {format_s(k.restart_s)}"
        )
    for b in f.blast:
        out += wrapped(
            f"a lost {b.lost} ({b.devices} devices) hits {significant(b.tensor_groups)} tensor"
            f" groups, {significant(b.stages)} stages, {significant(b.replicas)} replicas"
            f" ({b.idle_devices:,.0f} devices), {significant(b.in_flight_microbatches)}"
            " microbatches",
            "  ",
        )
    head = (
        f"  {'after a failure':<34}{'spares':>7}{'restart':>10}{'goodput':>16}{'closed form':>13}"
    )
    out.append(head + f"{'waiting':>10}")
    for s in f.strategies:
        good = f"{format_frac(s.goodput_frac)} (+-{100 * s.goodput_error_frac:.1f})"
        closed = "-" if s.goodput_closed_frac is None else format_frac(s.goodput_closed_frac)
        out.append(
            f"  {s.name:<34}{s.spares:>7}{format_s(s.restart_s):>10}{good:>16}{closed:>13}"
            f"{format_frac(s.waiting_frac):>10}"
        )
    first = f.strategies[0]
    out.append(f"  goodput by {first.draws} runs event by event, seed {first.seed}")
    wanted = f"{100 * f.availability_frac:.5g} %"
    out.append(f"  {f.spares_wanted} spares keep all hosts there {wanted} of the time")
    for spare in f.spares:
        name = spare.kind.removeprefix("whole job, ")
        reached = f"{100 * spare.available_frac:.5g} %"
        said = f"{spare.spares} for {wanted} of the time up ({reached})"
        if spare.spares is None:
            said = f"no number reaches {wanted}: restarts leave {reached}"
        out += wrapped(f"{name}: {said}", "  ")
    phases = ", ".join(f"{name} {format_s(value)}" for name, value in f.phases_s.items())
    out += wrapped(f"a lost host, phase by phase: {phases}", "  ")
    for spot in f.spot:
        how = "all together" if spot.together else "each its own way"
        out.append(
            f"  spot, {spot.zone:<11}{spot.hosts:>6} hosts, {how:<17}there"
            f" {format_frac(spot.available_frac):>7}, useful {format_frac(spot.useful_frac):>7}"
        )
    return out


def checkpoint_lines(f: Failures) -> list[str]:
    """A row a tier and mode, then its money and what recovery needs."""
    out = [
        f"{'checkpoints':<20}{'mode':<7}{'block':>9}{'save':>9}{'load':>9}{'every':>9}{'lost':>9}"
        f"{'goodput':>10}{'a month':>10}"
    ]
    for c in f.checkpoints:
        out.append(
            f"  {c.tier:<18}{c.mode[:5]:<7}{format_s(c.block_s):>9}{format_s(c.save_s):>9}"
            f"{format_s(c.load_s):>9}{format_s(c.interval_s):>9}{format_s(c.lost_s):>9}"
            f"{format_frac(c.goodput_frac):>10}{format_usd(c.usd_month):>10}"
        )
    out += wrapped(
        f"first {f.full_bytes / 1e12:.3g} TB, later ones {f.increment_bytes / 1e12:.3g} TB (what"
        f" training changes), {f.copies_bytes / 1e12:.3g} TB where each replica writes its own",
        "  ",
    )
    best = max(f.checkpoints, key=lambda c: c.goodput_frac)
    out += wrapped(_best_text(best), "  ")
    if best.recovery_reached is not None:
        said = "reached" if best.recovery_reached else f"not reached: {best.recovery_needs}"
        out += wrapped(f"recovery objective on {best.tier}: {said}", "  ")
    for c in f.checkpoints:
        if c.binding != "bandwidth":
            out.append(f"  {c.tier}, {c.mode}: bound by {c.binding}")
    return out


def _best_text(c: CheckpointRow) -> str:
    return (
        f"{c.tier}: {c.bytes / 1e12:.3g} TB, readable after {format_frac(c.readable_frac)} of"
        f" failures; a month {c.at_risk_device_h:,.0f} device-hours redone,"
        f" {c.restart_device_h_month:,.0f} in restarts beside {c.bubble_device_h_month:,.0f} in"
        f" bubbles; {format_usd(c.lost_usd_month)} lost, {format_usd(c.storage_usd_month)} storage"
    )


def network_lines(n: NetworkHealth) -> list[str]:
    """Collectives beside their timeout, tiers, ZeRO-3, collisions."""
    out = [f"{'network':<34}{'tier':<8}{'expected':>10}{'P99':>10}{'timeout':>10}{'used':>8}"]
    for c in n.collectives:
        out.append(
            f"  {c.axis + ' ' + c.operation:<32}{c.tier:<8}{format_s(c.expected_s):>10}"
            f"{format_s(c.p99_s):>10}{format_s(c.timeout_s):>10}{format_frac(c.timeout_frac):>8}"
        )
    for t in n.tiers:
        out.append(
            f"  {t.tier}: {format_bandwidth(t.needed_bytes_per_s)} a device needed of"
            f" {format_bandwidth(t.offered_bytes_per_s)}, headroom {format_frac(t.headroom_frac)}"
        )
    verdict = "the fabric carries it" if n.zero3_carried else "not carried: TP or PP are needed"
    out += wrapped(
        f"ZeRO-3 over all devices needs {format_bandwidth(n.zero3_needs_bytes_per_s)} of"
        f" {format_bandwidth(n.zero3_offered_bytes_per_s)} a device at this batch: {verdict}",
        "  ",
    )
    for row in n.congestion:
        out.append(
            f"  oversubscribed {row.oversubscription:.0f}:1, {row.routing:<25}x{row.mean:.2f}, P95"
            f" {row.p95:.2f} (+-{row.p95_error:.2f}), P99 {row.p99:.2f} (+-{row.p99_error:.2f})"
        )
    if n.congestion:
        drawn = n.congestion[0]
        out.append(f"  collisions and P99 of collectives: {drawn.draws:,} draws, seed {drawn.seed}")
    return out


def keep_lines(plan: PlanTail) -> list[str]:
    """What is best done with activations and the optimizer's state."""
    out = []
    for k in plan.keep:
        out += wrapped(
            f"rank {k.stage}: of {k.layers} layers keep {k.keep}, recompute {k.recompute}, to host"
            f" {k.host}, to NVMe {k.nvme}; {_optimizer(k)}; +{format_s(k.added_s)} and"
            f" {format_usd(k.added_usd)} a step" + (f" ({k.note})" if k.note else ""),
            "",
        )
        out += wrapped(
            "a layer and microbatch if all do alike: "
            + ", ".join(f"{name} {format_s(v)}" for name, v in k.cost_s.items())
            + "; the optimizer's step with all state there: "
            + ", ".join(f"{name} {format_s(v)}" for name, v in k.optimizer_s.items()),
            "  ",
        )
        out += wrapped(_drives(k), "  ")
    return out


def _optimizer(k: KeepRow) -> str:
    if k.optimizer_host_frac > 0.0:
        return f"{format_frac(k.optimizer_host_frac)} of the optimizer in host memory"
    if k.optimizer_nvme_frac > 0.0:
        return f"{format_frac(k.optimizer_nvme_frac)} of the optimizer on NVMe"
    return "optimizer on the device"


def _drives(k: KeepRow) -> str:
    pays = k.nvme_pays_from_bytes_per_s
    here = {None: "at no rate", 0.0: "at any rate: nothing else fits"}.get(
        pays, f"from {format_bandwidth(pays or 0.0)} a device"
    )
    text = (
        f"NVMe pays here {here}, for activations alone from"
        f" {format_bandwidth(k.useful_nvme_bytes_per_s)}; there is"
        f" {format_bandwidth(k.nvme_bytes_per_s)}"
    )
    if k.nvme_life_months is not None:
        text += f", and the drives last {significant(k.nvme_life_months)} months"
    return text
