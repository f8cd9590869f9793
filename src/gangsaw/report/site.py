"""The site around a plan and the batch sweep as text of 100 columns."""

from __future__ import annotations

from gangsaw.bill.tokens import BatchSweep
from gangsaw.report.scorecard import wrapped
from gangsaw.search.site import SiteAnswer, Target
from gangsaw.units import (
    format_bandwidth,
    format_count,
    format_frac,
    format_gib,
    format_s,
    format_usd,
    significant,
)


def _amount(value: float, unit: str) -> str:
    """A target's value in the unit that reads best."""
    if unit == "bytes":
        return format_gib(value)
    if unit == "bytes/s":
        return format_bandwidth(value)
    if unit == "W":
        return f"{significant(value / 1e3)} kW"
    return f"{value:,.0f} {unit}"


def _target(t: Target) -> list[str]:
    """One line of the request for proposal."""
    now = "" if t.now is None else f" (has {_amount(t.now, t.unit)})"
    bad = "" if t.holds in (None, True) else "  NOT MET"
    return wrapped(f"{t.name}: at least {_amount(t.least, t.unit)}{now}{bad}: {t.threshold}", "  ")


def site_text(a: SiteAnswer) -> str:
    """Targets, floor, fabric, cap, own or rent."""
    out = ["for a request for proposal, the least with which this plan holds:"]
    for t in a.targets:
        out += _target(t)
    if a.floor is not None:
        f = a.floor
        out += wrapped(
            f"floor: {f.nodes:,} nodes, {f.nodes_per_rack} a rack (bound by {f.rack_limit}),"
            f" {f.racks:,} racks of {significant(f.rack_w / 1e3)} kW, feed"
            f" {significant(f.feed_w / 1e6)} MW at rated power",
            "",
        )
        if f.nodes_possible is not None:
            limits = ", ".join(f"{k} {v:,}" for k, v in f.by_limit.items())
            verdict = "fits" if f.fits else f"does NOT fit: {f.site_limit} binds"
            out += wrapped(f"nodes that the site allows, by limit: {limits}; {verdict}", "  ")
    else:
        out += wrapped(f"floor: {a.floor_note}", "")
    out += _fabric_lines(a)
    c, u = a.cap, a.uncapped
    out += wrapped(
        f"power cap with the cheapest token: {c.cap_w:,.0f} W a device"
        f" ({format_usd(c.usd_per_million_tokens)} a million tokens, step"
        f" {format_s(c.step_time_s)}; uncapped {format_usd(u.usd_per_million_tokens)},"
        f" {format_s(u.step_time_s)})",
        "",
    )
    if a.host is not None:
        h = a.host
        lanes = "enough" if h.lanes_ok else "TOO FEW"
        room = "enough" if h.memory_ok else "TOO LITTLE"
        out += wrapped(
            f"host: {h.lanes_needed} PCIe lanes needed of {h.lanes} ({lanes}); memory"
            f" {format_gib(h.memory_needed_bytes)} of {format_gib(h.memory_bytes)} ({room})",
            "",
        )
    return "\n".join(out + _own_lines(a))


def _fabric_lines(a: SiteAnswer) -> list[str]:
    """Counted parts, their power and money."""
    if a.fabric is None:
        return wrapped(f"fabric: {a.fabric_note}", "")
    p = a.fabric
    watts = p.optics_w + (p.switch_w or 0.0)
    power = f"optics {significant(p.optics_w / 1e3)} kW" if p.switch_w is None else (
        f"switches and optics {significant(watts / 1e3)} kW"
    )  # fmt: skip
    money = (
        f"not priced: {', '.join(p.not_priced)}; by its share of capital"
        f" {format_usd(p.usd_by_share)}"
        if p.usd is None
        else f"{format_usd(p.usd)}; by its share of capital {format_usd(p.usd_by_share)}"
    )
    return wrapped(
        f"fabric: {p.tiers} tiers of {a.switch}, {p.switches:,} switches ({p.leaves:,} leaves,"
        f" {p.spines:,} spines, {p.cores:,} cores), {p.ports_used:,} ports, {p.cables:,} cables,"
        f" {p.optics:,} optics; {power}; {money}",
        "",
    )


def _own_lines(a: SiteAnswer) -> list[str]:
    """The break-even and what each side must believe."""
    o = a.own_or_rent
    if o is None:
        return wrapped(f"own or rent: {a.own_note}", "")
    cash = o.break_even_cash_month
    even = "not within the horizon" if cash is None else f"month {cash:.0f}"
    months = o.curve[-1].month
    use = o.utilisation_at_parity_frac
    need = "at no use" if use is None else f"above {format_frac(use)} use"
    return wrapped(
        f"own or rent, a device: cash breaks even {even}; after 12 months owned"
        f" {format_usd(o.month_12.owned_usd)} (resale deducted), rented"
        f" {format_usd(o.month_12.rented_usd)}. Over {months} months owning needs a rent above"
        f" {format_usd(o.rent_at_parity_usd)} an hour, or pays {need}, or a server under"
        f" {format_usd(o.price_at_parity_usd)}",
        "",
    )


def batches_text(s: BatchSweep) -> str:
    """Batch, step, token, and the way to the target for a low, middle and high critical batch."""
    out = wrapped(
        "tokens to the same loss against batch; critical batch"
        f" {format_count(s.critical.low_tokens)}-{format_count(s.critical.high_tokens)} tokens"
        f" ({s.critical.source})",
        "",
    )
    head = (
        f"{'batch':>10}{'step':>10}{'$/M tokens':>12}"
        f"{'tokens needed':>15}{'to target':>11}  {'low-high':<22}"
    )
    out.append(head.rstrip())
    for i, p in enumerate(s.points):
        marks = [
            "best" if i == s.best[1] else "",
            "cheapest token" if i == s.fastest_step_usd else "",
        ]
        span = f"{format_usd(min(p.usd))}-{format_usd(max(p.usd))}"
        said = ", ".join(m for m in marks if m)
        out.append(
            f"{format_count(p.batch_tokens):>10}{format_s(p.step_time_s):>10}"
            f"{format_usd(p.usd_per_step / p.batch_tokens * 1e6):>12}"
            f"{format_count(p.tokens[1]):>15}{format_usd(p.usd[1]):>11}  {span:<19} {said}".rstrip()
        )
    return "\n".join(out)
