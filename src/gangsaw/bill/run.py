"""Invoices of a step, a million tokens, a whole run and a month, from one step's use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gangsaw.bill.goodput import daly_interval_s, expected_wall_s, job_mtbf_s
from gangsaw.bill.invoice import close_exactly
from gangsaw.errors import InputError
from gangsaw.spec.invoice import (
    ALL_STAGES,
    NO_TIER,
    PHASES,
    Basis,
    Invoice,
    InvoiceLine,
    Rates,
    RunTerms,
    Spending,
    StepUse,
)
from gangsaw.spec.price import PriceBook
from gangsaw.units import HOUR_S, YEAR_S

MONTH_S = YEAR_S / 12
PER_STEP_CAUSES = frozenset({"bubble", "dp_comm", "optimizer", "host"})
"""Seconds of a step that do not shrink with its batch; all others are in proportion to it."""
UNLOADED_CAUSES = frozenset({"unallocated", "failure"})
"""Hours in which devices draw idle power."""
FORWARD_SHARE = 1 / 3
"""Forward over forward and backward: backward has two products for each one of forward."""
_EVALUATED = ("compute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "bubble", "unallocated")

SERVICES = "services"
"""Phase and cause of the lines that are money without device time."""

Slot = tuple[str, str, str, str]
"""Phase, cause, stage, tier."""


@dataclass(frozen=True)
class Service:
    """Money of a run that is no device-hour: storage, egress, staff, network operation."""

    item: str
    spending: Spending
    usd: float
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pricing:
    """What turns device time into money: rates, the book they come from, and today."""

    rates: Rates
    book: PriceBook
    today: date | None = None


@dataclass(frozen=True)
class Extras:
    """What stands on an invoice beside device time: services, notes, figures behind the terms."""

    services: tuple[Service, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


NO_EXTRAS = Extras()


@dataclass
class Account:
    """Device-seconds by slot, and the wall time that they fill."""

    devices: int
    wall_s: float = 0.0
    slots: dict[Slot, float] = field(default_factory=dict)

    def add(self, slot: Slot, device_s: float) -> None:
        """Book device-seconds."""
        if device_s:
            self.slots[slot] = self.slots.get(slot, 0.0) + device_s

    def scaled(self, factor: float) -> Account:
        """The same account `factor` times as long."""
        slots = {slot: s * factor for slot, s in self.slots.items()}
        return Account(self.devices, self.wall_s * factor, slots)


def step_account(use: StepUse, steps: float = 1.0, phase: str = "training") -> Account:
    """`steps` full steps of `use`."""
    account = Account(use.devices, steps * use.step_time_s)
    for line in use.lines:
        account.add((phase, line.cause, line.stage, line.tier), steps * line.device_s)
    return account


def step_invoice(use: StepUse, pricing: Pricing) -> Invoice:
    """The invoice of one step."""
    return make_invoice(step_account(use), "step", use.title, use.tokens_per_step, pricing)


def million_tokens_invoice(use: StepUse, pricing: Pricing) -> Invoice:
    """The invoice of a million tokens at full batch."""
    account = step_account(use, 1e6 / use.tokens_per_step)
    return make_invoice(account, "million tokens", use.title, 1e6, pricing)


def ramp_steps(tokens_per_step: float, ramp_tokens: float, start_frac: float) -> float:
    """Steps of a batch that grows linearly in tokens from `start_frac` of the full one.

    Integral of dx / b(x): R ln(1/f) / (B (1 - f)).
    """
    return ramp_tokens / tokens_per_step * math.log(1 / start_frac) / (1 - start_frac)


def run_account(use: StepUse, terms: RunTerms) -> tuple[Account, float, tuple[str, ...]]:
    """Device-seconds of a whole run by phase, its steps, and notes on what it assumes.

    Start, batch ramp, full-batch steps and evaluations are the work; stragglers stretch it, saves
    interrupt it, failures lose part of it. Raises InputError where failures leave no progress.
    """
    full_steps = _full_steps(use, terms)
    account = step_account(use, full_steps)
    _add_start(account, terms)
    steps = full_steps + _add_ramp(account, use, terms)
    _add_evaluations(account, use, terms, steps)
    if terms.straggler_frac:
        stretch_s = account.wall_s * terms.straggler_frac / (1 - terms.straggler_frac)
        _add_waiting(account, "training", "straggler", stretch_s)
    notes: list[str] = []
    if terms.device_mtbf_h is not None:
        notes += _add_failures(account, terms, terms.device_mtbf_h)
    elif terms.checkpoint_interval_s:
        saves = account.wall_s / terms.checkpoint_interval_s
        _add_waiting(account, "checkpoints", "checkpoint", saves * terms.checkpoint_block_s)
    return account, steps, tuple(notes)


def run_invoice(use: StepUse, terms: RunTerms, pricing: Pricing) -> Invoice:
    """The invoice of a whole run of `terms.tokens` tokens."""
    account, steps, notes = run_account(use, terms)
    services = run_services(account, terms, pricing)
    said = [f"{steps:,.0f} optimizer steps"]
    if terms.device_mtbf_h is not None:
        mtbf_s = job_mtbf_s(terms.device_mtbf_h, use.devices)
        said.append(f"{account.wall_s / mtbf_s:,.0f} failures expected")
    extras = Extras(services, (*said, *notes), terms.figures)
    return make_invoice(account, "run", use.title, terms.tokens, pricing, extras)


def month_invoice(use: StepUse, terms: RunTerms, pricing: Pricing) -> Invoice:
    """The invoice of a calendar month (1/12 year) of the run's steady state.

    Start and batch ramp are left out; saves, failures and evaluations come at the run's rates.
    """
    steady = terms.model_copy(update={"start_s": 0.0, "ramp_tokens": 0.0})
    account, _, notes = run_account(use, steady)
    factor = MONTH_S / account.wall_s
    month = account.scaled(factor)
    services = run_services(month, steady, pricing)
    tokens = _full_steps(use, steady) * use.tokens_per_step * factor
    extras = Extras(services, notes, terms.figures)
    return make_invoice(month, "month", use.title, tokens, pricing, extras)


def run_services(account: Account, terms: RunTerms, pricing: Pricing) -> tuple[Service, ...]:
    """Storage of the kept checkpoints, egress of restores, and staff, as far as priced."""
    book, services = pricing.book, []
    if terms.checkpoint_bytes and terms.checkpoints_kept:
        gb_months = terms.checkpoint_bytes * terms.checkpoints_kept / 1e9
        usd = gb_months * account.wall_s / MONTH_S * book.value(terms.storage_key, "USD/GB-month")
        services.append(Service("storage", "operating", usd, (terms.storage_key,)))
    if terms.restore_egress and terms.device_mtbf_h is not None:
        restores = account.wall_s / job_mtbf_s(terms.device_mtbf_h, account.devices)
        usd = restores * terms.checkpoint_bytes / 1e9 * book.value(terms.egress_key, "USD/GB")
        services.append(Service("egress", "operating", usd, (terms.egress_key,)))
    for key in book.keys("staff"):
        usd = book.value(key, "USD/year") * account.wall_s / YEAR_S
        services.append(Service("staff", "operating", usd, (key,)))
    effort = fabric_effort(pricing)
    if len(effort) == 1:
        usd = book.value(effort[0], "USD/year") * account.wall_s / YEAR_S
        services.append(Service("network operation", "operating", usd, effort))
    return tuple(services)


def fabric_effort(pricing: Pricing) -> tuple[str, ...]:
    """Figures of running a fabric that an owner bears; whoever rents pays it with the hour."""
    if not any(item.item == "fabric" for item in pricing.rates.items):
        return ()
    return tuple(pricing.book.keys("network.opex"))


def make_invoice(
    account: Account,
    basis: Basis,
    title: str,
    tokens: float,
    pricing: Pricing,
    extras: Extras = NO_EXTRAS,
) -> Invoice:
    """An account at rates, as lines that sum exactly (rounding rule: `bill.invoice`)."""
    device_s = account.devices * account.wall_s
    slots = sorted(account.slots, key=lambda slot: (PHASES.index(slot[0]), slot))
    closed = dict(
        zip(slots, close_exactly([account.slots[s] for s in slots], device_s), strict=True)
    )
    rows = _rows(closed, pricing.rates)
    rows += [
        ((SERVICES, SERVICES, ALL_STAGES, NO_TIER), s.item, s.spending, 0.0, s.usd)
        for s in extras.services
    ]
    usd = math.fsum(row[4] for row in rows)
    money = close_exactly([row[4] for row in rows], usd)
    lines = tuple(
        InvoiceLine(
            phase=slot[0],
            cause=slot[1],
            stage=slot[2],
            tier=slot[3],
            item=item,
            spending=spending,
            device_s=seconds,
            usd=paid,
        )
        for (slot, item, spending, seconds, _), paid in zip(rows, money, strict=True)
    )
    keys = [k for item in pricing.rates.items for k in item.keys]
    keys += [k for s in extras.services for k in s.keys] + list(extras.figures)
    used = tuple(dict.fromkeys(keys))
    return Invoice(
        title=title,
        basis=basis,
        offer=pricing.rates.name,
        devices=account.devices,
        wall_s=account.wall_s,
        tokens=tokens,
        lines=lines,
        device_s=device_s,
        usd=usd,
        figures=used,
        stale=pricing.book.stale(pricing.today or date.today(), used),
        not_billed=_not_billed(pricing, extras.services),
        notes=extras.notes,
    )


Row = tuple[Slot, str, Spending, float, float]


def _rows(slots: Mapping[Slot, float], rates: Rates) -> list[Row]:
    """One row a slot and item; device-seconds stand on the first item's row."""
    rows: list[Row] = []
    for slot, device_s in slots.items():
        for index, item in enumerate(rates.items):
            price = item.usd_per_device_hour
            if slot[1] in UNLOADED_CAUSES and item.unused_usd_per_device_hour is not None:
                price = item.unused_usd_per_device_hour
            usd = device_s / HOUR_S * price
            rows.append((slot, item.item, item.spending, 0.0 if index else device_s, usd))
    return rows


def _not_billed(pricing: Pricing, services: Sequence[Service]) -> tuple[str, ...]:
    """What a complete bill would hold and this one has no figure for."""
    missing = list(pricing.rates.not_billed)
    if not any(s.item == "staff" for s in services):
        known = bool(pricing.book.keys("staff"))
        why = "billed by time: a run or a month" if known else "no figure under staff.*"
        missing = [m for m in missing if not m.startswith("staff")] + [f"staff ({why})"]
    effort = fabric_effort(pricing)
    if len(effort) > 1:
        missing.append(f"running the network (one of {', '.join(effort)} counts, not both)")
    elif effort and not any(s.item == "network operation" for s in services):
        missing.append("running the network (billed by time: a run or a month)")
    return tuple(dict.fromkeys(missing))


def _full_steps(use: StepUse, terms: RunTerms) -> float:
    """Steps at full batch; the last one is whole."""
    return float(math.ceil((terms.tokens - terms.ramp_tokens) / use.tokens_per_step))


def _add_start(account: Account, terms: RunTerms) -> None:
    """All devices wait while the job starts."""
    _add_waiting(account, "start", "host", terms.start_s)


def _add_ramp(account: Account, use: StepUse, terms: RunTerms) -> float:
    """The batch ramp; returns its steps. Per-step causes do not shrink with the batch.

    Exact while the smaller batch still has as many microbatches as the pipeline has ranks.
    """
    if not terms.ramp_tokens:
        return 0.0
    steps = ramp_steps(use.tokens_per_step, terms.ramp_tokens, terms.ramp_start_frac)
    equivalent = terms.ramp_tokens / use.tokens_per_step
    busy = [x for x in use.lines if x.cause != "unallocated"]
    device_s = 0.0
    for line in busy:
        share = line.device_s * (steps if line.cause in PER_STEP_CAUSES else equivalent)
        account.add(("batch ramp", line.cause, line.stage, line.tier), share)
        device_s += share
    unused = math.fsum(x.device_s for x in use.lines if x.cause == "unallocated")
    stretch = device_s / max(math.fsum(x.device_s for x in busy), math.ulp(0.0))
    account.add(("batch ramp", "unallocated", ALL_STAGES, NO_TIER), unused * stretch)
    account.wall_s += (device_s + unused * stretch) / use.devices
    return steps


def _add_evaluations(account: Account, use: StepUse, terms: RunTerms, steps: float) -> None:
    """Forward passes over held-out tokens: a third of the causes that a forward pass has."""
    if not (terms.eval_every_steps and terms.eval_tokens):
        return
    count = math.floor(steps / terms.eval_every_steps)
    scale = count * terms.eval_tokens / use.tokens_per_step * FORWARD_SHARE
    for line in use.lines:
        if line.cause in _EVALUATED:
            account.add(("evaluation", line.cause, line.stage, line.tier), scale * line.device_s)
            account.wall_s += scale * line.device_s / use.devices


def _add_waiting(account: Account, phase: str, cause: str, wall_s: float) -> None:
    """Every device spends `wall_s` on `cause`."""
    account.add((phase, cause, ALL_STAGES, NO_TIER), account.devices * wall_s)
    account.wall_s += wall_s


def _add_failures(account: Account, terms: RunTerms, device_mtbf_h: float) -> list[str]:
    """Saves and the expected loss to failures (Daly 2006)."""
    mtbf_s = job_mtbf_s(device_mtbf_h, account.devices)
    work_s = account.wall_s
    interval_s = terms.checkpoint_interval_s or daly_interval_s(terms.checkpoint_block_s, mtbf_s)
    if interval_s <= 0:
        raise InputError(
            "checkpoint_block_s=0 and no checkpoint_interval_s: free saves have no best interval;"
            " state one of them"
        )
    total_s = expected_wall_s(work_s, terms.checkpoint_block_s, interval_s, mtbf_s, terms.restart_s)
    saves_s = work_s / interval_s * terms.checkpoint_block_s
    _add_waiting(account, "checkpoints", "checkpoint", saves_s)
    _add_waiting(account, "failures", "failure", total_s - work_s - saves_s)
    return [
        f"a save every {interval_s / 60:,.1f} min, blocking {terms.checkpoint_block_s:,.3g} s",
        f"a failure every {mtbf_s / HOUR_S:,.1f} h, {terms.restart_s / 60:,.0f} min to restart",
    ]


def terms_of_book(book: PriceBook, tokens: float, params: float = 0.0) -> RunTerms:
    """Terms of a run with the book's failure, restart and checkpoint figures.

    `params`: parameters of the model, for the size of a checkpoint.
    """
    keys = (
        "failure.device.mtbf",
        "failure.restart.time",
        "failure.checkpoint.block",
        "failure.checkpoint.bytes",
    )
    units = ("hours", "s", "s", "count")
    mtbf_h, restart_s, block_s, bytes_each = (
        book.value(k, u) for k, u in zip(keys, units, strict=True)
    )
    return RunTerms(
        tokens=tokens,
        device_mtbf_h=mtbf_h,
        restart_s=restart_s,
        checkpoint_block_s=block_s,
        checkpoint_bytes=params * bytes_each,
        checkpoints_kept=3 if params else 0,
        figures=keys,
    )
