"""Results as text for a terminal: 100 columns, readable at 80; plain ASCII where colour is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gangsaw.report import data, words
from gangsaw.report.colours import CAUSE_COLOURS, CAUSE_LETTERS, MEMORY_COLOURS, MEMORY_LETTERS
from gangsaw.spec.result import (
    CollectiveDoc,
    EstimateResult,
    MemoryDoc,
    PlanDoc,
    PlanListResult,
    PlanResult,
)
from gangsaw.units import format_frac, format_gib, format_s, format_usd, significant

MOST_ROWS = 16
"""Stages listed one by one; of more, as many evenly spaced."""


def plan_list_text(result: PlanListResult, console: Console) -> None:
    """The ranked plans, memory beside the bill; nearest misses where nothing fits."""
    console.print(Text(_headline(result), style="bold"))
    console.print(Text(_searched(result), style="dim"))
    console.print()
    if not result.plans:
        _nearest(result, console)
    else:
        _plan_head(console)
    for number, plan in enumerate(result.plans, start=1):
        _plan_block(number, plan, console)
    if result.plans:
        console.print(_legend(result.plans, console))
    _notes(result.notes, console)


def estimate_text(result: EstimateResult, console: Console) -> None:
    """One plan with every term."""
    head = f"{words.title(result.model, result.cluster, result.plan)}, stack {result.stack}"
    console.print(Text(head, style="bold"))
    console.print(Text(words.in_words(result.plan)))
    console.print()
    _plan_block(1, result, console, number_shown=False)
    console.print(_heading("Time, from peak to delivered"))
    console.print(Padding(_waterfall_table(result, console), (0, 0, 1, 2)))
    console.print(_heading("Memory of each stage at its own peak, GiB"))
    console.print(Padding(memory_table(result.memory, console), (0, 0, 1, 2)))
    console.print(_heading("Bill of a step"))
    console.print(Padding(bill_table(result, console), (0, 0, 1, 2)))
    if result.collectives:
        console.print(_heading("Collectives"))
        console.print(Padding(_collective_table(result.collectives), (0, 0, 1, 2)))
    if result.memory.moments:
        peaks = ", ".join(f"{k} {format_gib(v)}" for k, v in result.memory.moments.items())
        host = f"host {format_gib(result.memory.host_bytes)} a node"
        console.print(Text(f"Device peaks: {peaks}; {host}"))
    for source in result.sources:
        console.print(Text(f"source: {source}", style="dim"))
    _notes(result.notes, console)


def memory_bar(result: PlanResult, width: int, console: Console) -> Text:
    """The tightest stage against capacity: letters, or coloured blocks."""
    parts = data.peak_parts(result)
    counts = data.cells(tuple(p.amount for p in parts), result.memory.capacity_bytes, width)
    bar = Text()
    for part, count in zip(parts, counts, strict=True):
        if is_plain(console):
            bar.append(MEMORY_LETTERS[part.key] * count)
        elif part.key in ("reserved", "outside"):
            bar.append("▒" * count, style=MEMORY_COLOURS["reserved"])
        else:
            bar.append("█" * count, style=MEMORY_COLOURS[part.key])
    bar.append(("." if is_plain(console) else "·") * (width - sum(counts)), style="dim")
    return bar


def bill_bar(result: PlanResult, width: int, console: Console) -> Text:
    """The invoice as a bar: work first, then idle causes, dearest first."""
    rows = data.invoice_rows(result.bill)
    counts = data.cells(tuple(r.device_hours for r in rows), result.bill.device_s / 3600.0, width)
    bar = Text()
    for row, count in zip(rows, counts, strict=True):
        if is_plain(console):
            bar.append(CAUSE_LETTERS[row.cause] * count)
        else:
            block = "▒" if row.idle else "█"
            bar.append(block * count, style=CAUSE_COLOURS[row.cause])
    return bar


def memory_table(memory: MemoryDoc, console: Console) -> Table:
    """Memory of the stages, in GiB; of many stages some."""
    wide = console.width >= 96
    names = ("params", "grads", "optimizer", "activations", "logits", "buffers")
    titles = ["layers", "params", "grads", "optim", "activ", "logits", "buffers"]
    titles += ["alloc", "reserved", "device"]
    if not wide:
        titles = ["lay", "param", "grad", "optim", "activ", "logit", "buff"]
        titles += ["alloc", "resv", "dev"]
    columns = [("stage", "left"), *((title, "right") for title in titles)]
    table = plain_table(*columns, *((("peak in", "left"),) if wide else ()))
    table.padding = (0, 1, 0, 0)
    tightest = data.tightest_stage(memory)
    shown = _sample(len(memory.per_stage), tightest)
    for i in shown:
        stage = memory.per_stage[i]
        cells = [f"{stage.stage} <" if i == tightest else f"{stage.stage}", str(stage.layers)]
        cells += [_gib(getattr(stage, f"{key}_bytes")) for key in names]
        cells += [_gib(stage.peak_allocated_bytes), _gib(stage.peak_reserved_bytes)]
        cells += [_gib(stage.peak_device_bytes), *((stage.phase,) if wide else ())]
        table.add_row(*cells, style="bold" if i == tightest else "")
    table.caption = f"capacity {format_gib(memory.capacity_bytes)}; < marks the tightest stage"
    if len(shown) < len(memory.per_stage):
        table.caption += f"; {len(shown)} of {len(memory.per_stage)} stages, all with --json"
    table.caption_justify = "left"
    table.caption_style = "dim"
    return table


def bill_table(result: PlanResult, console: Console) -> Table:
    """The invoice of a step: work, then idle time, dearest first, and the total."""
    table = plain_table(
        ("cause", "left"), ("", "left"), ("device-h", "right"), ("money", "right"),
        ("share", "right"),
    )  # fmt: skip
    rows = data.invoice_rows(result.bill)
    top = max((row.share_frac for row in rows), default=1.0)
    before = False
    for row in rows:
        if row.idle and not before:
            table.add_row("")
            before = True
        length = max(1, round(20 * row.share_frac / top))
        if is_plain(console):
            bar = Text(("-" if row.idle else "=") * length)
        else:
            bar = Text(("▒" if row.idle else "█") * length, style=CAUSE_COLOURS[row.cause])
        table.add_row(
            row.title, bar, significant(row.device_hours), format_usd(row.usd),
            format_frac(row.share_frac),
        )  # fmt: skip
    table.add_row("")
    bill = result.bill
    idle = data.idle_usd(bill)
    table.add_row(
        "idle, together", "", significant(bill.idle_device_hours), format_usd(idle),
        format_frac(bill.idle_frac), style="bold",
    )  # fmt: skip
    total = significant(bill.device_s / 3600.0)
    table.add_row("total", "", total, format_usd(bill.usd), "100.0 %", style="bold")
    return table


def _headline(result: PlanListResult) -> str:
    recipe = result.recipe
    first = result.plans[0].plan if result.plans else None
    return (
        f"{words.title(result.model, result.cluster, first)}: {recipe.get('seq_len')} tokens x"
        f" {recipe.get('global_batch')} sequences a step, {recipe.get('precision')},"
        f" {recipe.get('task')}, stack {result.stack}"
    )


def _searched(result: PlanListResult) -> str:
    found = result.searched
    return (
        f"{found.plans:,} plans evaluated, {found.legal:,} legal, {found.fit:,} fit,"
        f" {format_s(found.wall_s)}"
    )


def _columns(console: Console) -> tuple[int, ...]:
    """Widths of number, plan, time, memory and bill, four blanks apart."""
    return (3, 34, 19, 20, 20) if console.width >= 96 else (2, 28, 17, 14, 15)


def _grid(console: Console) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    for width in _columns(console):
        table.add_column(width=width, overflow="fold")
    return table


def _plan_head(console: Console) -> None:
    table = _grid(console)
    table.add_row("", "plan", "step time", "memory", "bill", style="dim")
    console.print(table)


def _plan_block(number: int, plan: PlanResult, console: Console, number_shown: bool = True) -> None:
    wide = console.width >= 96
    table = _grid(console)
    p, bill = plan.plan, plan.bill
    best = "bold" if number == 1 else ""
    mark = f"{number}{'>' if number == 1 else ''}" if number_shown else ""
    cut = Text(f"TP {p.tp}  CP {p.cp}  PP {p.pp}x{p.vpp}  DP {p.dp}", style=best)
    *_, memory_width, bill_width = _columns(console)
    rate = words.rate(plan).replace("tokens/s/device", "tok/s/dev")
    idle = words.idle_hours(bill)
    table.add_row(
        Text(mark, style="bold"), cut, Text(words.step_time(plan), style=best),
        memory_bar(plan, memory_width, console), bill_bar(plan, bill_width, console),
    )  # fmt: skip
    table.add_row(
        "", f"EP {p.ep}  ETP {p.etp}  batch {p.mbs} x {p.num_microbatches}",
        f"MFU {format_frac(plan.mfu_frac)}",
        words.memory_use(plan) if wide else words.memory_use(plan).replace(" of ", "/"),
        idle if wide else idle.replace("device-", "dev-"),
    )  # fmt: skip
    table.add_row("", words.choices(p), rate, _free(plan, wide), _money(plan, wide))
    console.print(table)
    for line in filter(None, (words.bad_day(plan), words.whole_run(plan))):
        console.print(Padding(Text(line), (0, 0, 0, _columns(console)[0] + 1)))
    why = ": ".join(part for part in (", ".join(plan.labels), words.spelled(plan.why)) if part)
    if why:
        console.print(Padding(Text(why, style="italic"), (0, 0, 0, _columns(console)[0] + 1)))
    if plan.like:
        console.print(Padding(Text(words.like(plan)), (0, 0, 0, _columns(console)[0] + 1)))
    console.print()


def _free(plan: PlanResult, wide: bool = True) -> str:
    fits = {"yes": ", fits", "risky": ", risky", "no": ""}[plan.memory.fits]
    free = words.free(plan.memory.headroom_frac)
    return free + fits if wide or plan.memory.fits == "risky" else free


def _money(plan: PlanResult, wide: bool) -> str:
    share = format_frac(plan.bill.idle_frac)
    per = words.money_per_tokens(plan.bill.usd_per_million_tokens)
    short = per.replace(" / ", "/").replace(" tokens", "tok")
    return f"{share}, {short}" if wide else short


def _nearest(result: PlanListResult, console: Console) -> None:
    console.print(Text("No plan fits. Nearest:", style="bold"))
    for miss in result.nearest:
        console.print(Padding(Text(miss_text(miss)), (0, 0, 0, 2)))
    if not result.nearest:
        console.print(Text("  nothing legal was found for these degrees and this batch"))


def miss_text(miss: Mapping[str, object]) -> str:
    """A plan that nearly fits, in a line: what it is, what it lacks, what would help."""
    if {"plan", "lacks", "remedy"} <= set(miss) and isinstance(miss["plan"], Mapping):
        return _miss_of_plan(PlanDoc.model_validate(miss["plan"]), miss)
    parts: list[str] = []
    for key, value in miss.items():
        if isinstance(value, Mapping):
            shown = " ".join(f"{k} {v}" for k, v in value.items() if isinstance(v, (int, str)))
            parts.append(shown)
        elif key.endswith("_bytes") and isinstance(value, (int, float)):
            parts.append(f"{_title(key)} {format_gib(value)}")
        elif key.endswith("_frac") and isinstance(value, (int, float)):
            parts.append(f"{_title(key)} {format_frac(value)}")
        elif key.endswith("_s") and isinstance(value, (int, float)):
            parts.append(f"{_title(key)} {format_s(value)}")
        else:
            parts.append(str(value) if isinstance(value, str) else f"{_title(key)} {value}")
    return "; ".join(parts)


def _miss_of_plan(plan: PlanDoc, miss: Mapping[str, object]) -> str:
    said = f"lacks {miss['lacks']}" if miss["lacks"] else "misses a goal"
    figures = []
    if miss["remedy"]:
        figures.append(f"with {miss['remedy']}")
    if isinstance(time_s := miss.get("step_time_s"), (int, float)):
        figures.append(f"{format_s(time_s)} a step")
    peak, capacity = miss.get("peak_bytes"), miss.get("capacity_bytes")
    if isinstance(peak, (int, float)) and isinstance(capacity, (int, float)):
        figures.append(f"{format_gib(peak)} where {format_gib(capacity)} fit")
    return f"{said}: {words.in_words(plan)}; {', '.join(figures)}"


def _title(key: str) -> str:
    for unit in ("_bytes", "_frac", "_s"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _legend(plans: Sequence[PlanResult], console: Console) -> Text:
    """What the letters or colours of the bars mean; only those that occur."""
    memory = {p.key: p.title for plan in plans for p in data.peak_parts(plan) if p.amount > 0}
    causes = {r.cause: r.title for plan in plans for r in data.invoice_rows(plan.bill)}
    text = Text(style="dim")
    for name, titles, letters, colours in (
        ("memory", memory, MEMORY_LETTERS, MEMORY_COLOURS),
        ("\nbill", causes, CAUSE_LETTERS, CAUSE_COLOURS),
    ):
        text.append(f"{name}: ")
        for i, (key, title) in enumerate(titles.items()):
            text.append("; " if i else "")
            if is_plain(console):
                text.append(f"{letters[key]} {title}")
            else:
                text.append("█ ", style=f"not dim {colours[key]}")
                text.append(title)
    return text


def _waterfall_table(result: EstimateResult, console: Console) -> Table:
    table = plain_table(("", "left"), ("adds", "right"), ("MFU after", "right"), ("", "left"))
    # Model FLOPs at the dense peak of all devices: what MFU compares the step with.
    ideal_s = result.mfu_frac * result.step_time_s
    table.add_row("all devices at peak", format_s(ideal_s), "100.0 %", "")
    for bar in data.waterfall(result):
        length = max(0, round(28 * bar.after_frac))
        style = CAUSE_COLOURS.get(bar.cause, CAUSE_COLOURS["compute"])
        drawn = Text(("=" if is_plain(console) else "█") * length, style=style)
        table.add_row(bar.title, format_s(bar.seconds), format_frac(bar.after_frac), drawn)
    table.caption = (
        f"lower bound {format_s(result.lower_bound_s)}, step {words.step_time(result)},"
        f" HFU {format_frac(result.hfu_frac)}"
    )
    table.caption_justify = "left"
    table.caption_style = "dim"
    return table


def _collective_table(collectives: Sequence[CollectiveDoc]) -> Table:
    table = plain_table(
        ("axis", "left"), ("operation", "left"), ("group", "right"), ("tier", "left"),
        ("a step", "right"), ("MiB each", "right"), ("each", "right"), ("exposed", "right"),
    )  # fmt: skip
    for item in collectives:
        table.add_row(
            item.axis.upper(), item.operation, str(item.group), item.tier,
            significant(item.count_per_step), significant(item.bytes_each / 2**20),
            format_s(item.seconds_each), format_s(item.exposed_s_per_step),
        )  # fmt: skip
    return table


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without lines; each column a title and its side."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for title, side in columns:
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"note: {note}", style="dim"))


def _sample(count: int, tightest: int) -> list[int]:
    """Stages to print: all of a few, else the ends, the tightest and some evenly between."""
    if count <= MOST_ROWS:
        return list(range(count))
    spread = {round(i * (count - 1) / (MOST_ROWS - 1)) for i in range(MOST_ROWS)}
    return sorted(spread | {tightest})


def _gib(value_bytes: float) -> str:
    return "0" if value_bytes == 0 else significant(value_bytes / 2**30)


def is_plain(console: Console) -> bool:
    """Whether this console gets letters instead of coloured blocks."""
    return console.no_color or not console.is_terminal
