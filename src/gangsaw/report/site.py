"""The site around a plan and the batch sweep as text of 100 columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from gangsaw.bill.fabric import HostCheck
from gangsaw.bill.finance import OwnOrRent
from gangsaw.bill.tokens import BatchSweep
from gangsaw.report import svg
from gangsaw.report.charts import SMALL
from gangsaw.report.curves import CURVE_LOOKS, mark
from gangsaw.report.scorecard import wrapped
from gangsaw.search.site import Caps, SiteAnswer, Target
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
    if a.caps is not None:
        out += _cap_lines(a.caps)
    if a.host is not None:
        out += _host_lines(a.host)
    out += _own_lines(a)
    if a.stale:
        out += wrapped(f"figures older than a year: {', '.join(a.stale)}", "")
    return "\n".join(out)


def _cap_lines(caps: Caps) -> list[str]:
    """What caps do to clock, step and money, and the cap with the cheapest token."""
    c, u = caps.cheapest, caps.uncapped
    out = wrapped(
        f"power cap with the cheapest token: {c.cap_w:,.0f} W a device"
        f" ({format_usd(c.usd_per_million_tokens)} a million tokens, step"
        f" {format_s(c.step_time_s)}; uncapped {format_usd(u.usd_per_million_tokens)},"
        f" {format_s(u.step_time_s)}), at {caps.basis}",
        "",
    )
    if caps.points:
        out.append(f"  {'cap':>8}{'clock':>9}{'step':>10}{'node':>10}{'$/M tokens':>13}")
    for p in caps.points:
        out.append(
            f"  {p.cap_w:>6,.0f} W{format_frac(p.device_clock_frac):>9}"
            f"{format_s(p.step_time_s):>10}{significant(p.node_w / 1e3):>7} kW"
            f"{format_usd(p.usd_per_million_tokens):>13}"
        )
    return out


def _host_lines(h: HostCheck) -> list[str]:
    """Lanes and memory of a host."""
    lanes = f"{h.lanes_needed} PCIe lanes needed"
    if h.lanes is not None:
        lanes += f" of {h.lanes} ({'enough' if h.lanes_ok else 'TOO FEW'})"
    room = "enough" if h.memory_ok else "TOO LITTLE"
    memory = f"{format_gib(h.memory_needed_bytes)} of {format_gib(h.memory_bytes)} ({room})"
    return wrapped(f"host: {lanes}; memory {memory}", "")


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
    for kind, usd in p.operating_by_kind.items():
        money += f"; running {kind} {format_usd(usd)} a year"
    money += "".join(f"; {note}" for note in p.notes)
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
    even = "not within the horizon" if cash is None else f"in month {cash:.0f}"
    sold = o.break_even_month
    resale = "not within the horizon" if sold is None else f"in month {sold:.0f}"
    if sold is not None and sold < 1:
        resale = "at once"
    months = o.curve[-1].month
    use = o.utilisation_at_parity_frac
    need = "at no use" if use is None else f"above {format_frac(use)} use"
    said = wrapped(
        f"own or rent, a device: breaks even {even} in cash, {resale} with the resale value"
        f" counted; after 12 months owned"
        f" {format_usd(o.month_12.owned_usd)} (resale deducted), rented"
        f" {format_usd(o.month_12.rented_usd)}. Over {months} months owning needs a rent above"
        f" {format_usd(o.rent_at_parity_usd)} an hour, or pays {need}, or a server under"
        f" {format_usd(o.price_at_parity_usd)}",
        "",
    )
    return said + _end_lines(a)


def _end_lines(a: SiteAnswer) -> list[str]:
    """The same at both ends of the ranges of what owning costs."""
    if a.own_ends is None:
        return []
    ends = (a.own_ends.cheap, a.own_ends.dear)
    months = [
        "not within the horizon" if m is None else f"month {m:.0f}"
        for m in (e.break_even_cash_month for e in ends)
    ]
    year = [format_usd(e.month_12.owned_usd) for e in ends]
    rent = [format_usd(e.rent_at_parity_usd) for e in ends]
    return wrapped(
        "with every figure of owning at its cheaper end, and at its dearer one: even in cash"
        f" {months[0]}, {months[1]}; after 12 months owned {year[0]}, {year[1]}; needs a rent above"
        f" {rent[0]}, {rent[1]} an hour; {a.own_ends.figures[0]} moves it most",
        "  ",
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


def _line_chart(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    titles: tuple[str, str],
    write_x: Callable[[float], str],
    log_x: bool,
) -> str:
    """Money over something: one line a curve, told apart by colour, dash and mark."""
    label, x_title, width = titles[0], titles[1], 620.0
    every = [p for _, points in curves for p in points]
    xs, top = [x for x, _ in every], max(y for _, y in every)
    low, high = min(xs), max(xs)
    left, base, height = 66.0, 250.0, 220.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = math.log(x / low) / math.log(high / low) if log_x else (x - low) / (high - low)
        return left + share * (width - left - 20), base - height * y / (1.06 * top)

    body = []
    for tick in svg.linear_ticks(0.0, 1.06 * top):
        y = at(low, tick)[1]
        body.append(svg.line((left, y), (width - 20, y)))
        body.append(svg.text((left - 6, y + 4), format_usd(tick), "end", svg.MUTED, SMALL))
    ticks = svg.log_ticks(low, high) if log_x else svg.linear_ticks(low, high)
    for tick in ticks[:: max(1, len(ticks) // 7)]:
        x = at(tick, 0.0)[0]
        body.append(svg.text((x, base + 16), write_x(tick), "middle", svg.MUTED, SMALL))
    body.append(svg.text((width / 2, base + 33), x_title, "middle", svg.MUTED, SMALL))
    for (name, points), (colour, dash, shape) in zip(curves, CURVE_LOOKS, strict=False):
        places = [at(*p) for p in points]
        body.append(svg.polyline(places, colour, f'stroke-width="2" {dash}'))
        for i in range(0, len(places), max(1, len(places) // 6)):
            said = escape(f"{name}: {format_usd(points[i][1])} at {write_x(points[i][0])}")
            body.append(mark(shape, places[i], colour, said, False))
    entries = [(look[0], "", name) for (name, _), look in zip(curves, CURVE_LOOKS, strict=False)]
    drawn, used = svg.legend(entries, 0, base + 42, width)
    return svg.document((width, base + 42 + used), label, "".join(body) + drawn)


def own_svg(a: OwnOrRent) -> str:
    """Money spent on an owned and on a rented device, month by month."""
    curves = (
        ("owned, resale deducted", [(float(m.month), m.owned_usd) for m in a.curve]),
        ("rented", [(float(m.month), m.rented_usd) for m in a.curve]),
    )
    titles = ("money spent on one device, owned and rented", "months")
    return _line_chart(curves, titles, lambda x: f"{x:.0f}", False)


def batches_svg(s: BatchSweep) -> str:
    """Money to the same loss against batch, for a low, middle and high critical batch."""
    names = ("low critical batch", "middle", "high")
    curves = tuple(
        (name, [(p.batch_tokens, p.usd[k]) for p in s.points]) for k, name in enumerate(names)
    )
    titles = ("money to the same loss against global batch", "tokens a step")
    return _line_chart(curves, titles, format_count, True)


def sections(site: SiteAnswer | None, batches: BatchSweep | None) -> str:
    """HTML of the site and the sweep, to stand under the invoices."""
    out = ""
    if site is not None:
        chart = own_svg(site.own_or_rent) if site.own_or_rent is not None else ""
        out += f"<h2>Site</h2>{chart}<pre>{escape(site_text(site))}</pre>"
    if batches is not None:
        chart = batches_svg(batches) if len(batches.points) > 1 else ""
        out += f"<h2>Batch</h2>{chart}<pre>{escape(batches_text(batches))}</pre>"
    return out
