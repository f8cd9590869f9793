"""What `bill` answers: the invoices of one plan, its memory, and a second plan beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal

from pydantic import Field

from gangsaw.bill.compare import Comparison, compare
from gangsaw.bill.finance import Ownership, Renting, owned_rates, ownership_of_book
from gangsaw.bill.invoice import step_bill
from gangsaw.bill.power import SitePower, site_power
from gangsaw.bill.rates import CAPITAL_OFFERS, flat, rented
from gangsaw.bill.run import (
    Pricing,
    million_tokens_invoice,
    month_invoice,
    run_invoice,
    step_invoice,
    terms_of_book,
)
from gangsaw.bill.spread import MoneySpan, money_span
from gangsaw.bill.value import Worth, worth_of
from gangsaw.errors import InputError
from gangsaw.read.clusters import list_nodes, load_cluster
from gangsaw.read.toml import validate
from gangsaw.spec.base import Document
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.invoice import Invoice, InvoiceLine, Rates, RunTerms, StepUse
from gangsaw.spec.price import PriceBook
from gangsaw.spec.result import BillDoc, MemoryDoc, PlanDoc

Per = Literal["step", "million-tokens", "run", "month"]
PERS: tuple[Per, ...] = ("step", "million-tokens", "run", "month")
OWNED = "owned"


class Energy(Document):
    """Energy of a run at the site's meter, and what it emits."""

    kwh: float
    usd: float
    kg_co2: float
    figures: tuple[str, ...]
    stale: tuple[str, ...] = Field((), description="of `figures`, those older than a year")


class BillAnswer(BillDoc):
    """The invoices of a plan; the memory chart stands beside them.

    Its own lines and totals are those of one step, as in the answer of `estimate`.
    """

    title: str
    plan: PlanDoc | None = None
    memory: MemoryDoc | None = None
    terms: RunTerms | None = None
    invoices: tuple[Invoice, ...]
    energy: Energy | None = Field(None, description="of the last invoice, loaded all of its time")
    worth: Worth | None = Field(
        None, description="of points of idle share recovered, over the last invoice and a year"
    )
    span: MoneySpan | None = Field(
        None, description="money of the last invoice within the ranges that its figures state"
    )
    line_usd: tuple[tuple[float, float | None], ...] = Field(
        (), description="each line of the last invoice at the two ends of `span`, in its order"
    )
    against: tuple[Invoice, ...] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True)
class BillChoices:
    """How a bill is asked for."""

    offer: str = ""
    owned: dict[str, float] | None = None
    terms: RunTerms | None = None
    terms_at: Callable[[PriceBook], RunTerms | None] | None = None
    """The terms under another book: those of them that come from it move with its ranges."""
    per: tuple[Per, ...] = ()
    today: date | None = None
    recover_frac: float = 0.01
    fleet_devices: int | None = None


def book_name(cluster: ClusterSpec, book: PriceBook, family: str) -> str:
    """Name under which the book's `family` knows the devices of a cluster.

    The cluster's own node first, then a node of the catalog with the same device; the node's name
    where the book has none, so that the error names it.
    """
    own = cluster.name.partition(":")[0]
    known = {key.split(".")[1] if family != "power" else key.split(".")[2]
             for key in book.keys("power.node" if family == "power" else family)}  # fmt: skip
    if own in known:
        return own
    for node in list_nodes():
        if node in known and load_cluster(f"{node}:8064").device.name == cluster.device.name:
            return node
    return own


def stated_node_w(cluster: ClusterSpec, book: PriceBook) -> float | None:
    """Rated power of a node as the cluster states it; None where the book's figure counts.

    A figure of the user's own price file goes before both.
    """
    key = f"power.node.{book_name(cluster, book, 'power')}"
    if key in book.mine or not cluster.host.node_power_w:
        return None
    if book.has(key) and book.value(key, "W") == cluster.host.node_power_w:
        return None
    return cluster.host.node_power_w


def power_of(cluster: ClusterSpec, book: PriceBook) -> SitePower:
    """Site power of a cluster's nodes. Raises InputError where nothing states a node's."""
    name = book_name(cluster, book, "power")
    return site_power(book, name, rated_w=stated_node_w(cluster, book))


def owning(cluster: ClusterSpec, book: PriceBook, **stated: float) -> Ownership:
    """What owning a device of the cluster costs. Raises InputError where figures lack."""
    name = book_name(cluster, book, "device_price")
    node_w = stated_node_w(cluster, book)
    return ownership_of_book(book, name, cluster.host.devices, node_w, **stated)


def rates_of(cluster: ClusterSpec, book: PriceBook, choices: BillChoices) -> Rates:
    """Rates by the offer asked for; without one the cluster's own price of a device-hour.

    Raises InputError for an offer that the book does not have.
    """
    if choices.offer == OWNED or choices.owned is not None:
        return owned_rates(owning(cluster, book, **(choices.owned or {})))
    name = book_name(cluster, book, "device_hour")
    if choices.offer:
        return rented(book, name, choices.offer)
    key = f"device_hour.{name}.on-demand"
    if book.has(key) and book.figures[key].value == cluster.usd_per_device_hour:
        return rented(book, name)
    rates = flat(cluster.usd_per_device_hour, cluster.price_source)
    if cluster.usd_per_device_hour == 0:
        return rates.model_copy(
            update={"not_billed": (f"devices (no price for {cluster.name.partition(':')[0]})",)}
        )
    return rates


def invoices_of(use: StepUse, pricing: Pricing, choices: BillChoices) -> tuple[Invoice, ...]:
    """The invoices asked for; by default a step, a million tokens, and the run where it is known.

    Raises InputError for a run or month without its number of tokens.
    """
    wanted: tuple[Per, ...] = choices.per or (
        ("step", "million-tokens", "run") if choices.terms else ("step", "million-tokens")
    )
    out = []
    for per in wanted:
        if per == "step":
            out.append(step_invoice(use, pricing))
        elif per == "million-tokens":
            out.append(million_tokens_invoice(use, pricing))
        elif choices.terms is None:
            raise InputError(f"a bill of a {per} needs the run's tokens: --tokens 15T")
        elif per == "run":
            out.append(run_invoice(use, choices.terms, pricing))
        else:
            out.append(month_invoice(use, choices.terms, pricing))
    return tuple(out)


def energy_of(
    cluster: ClusterSpec, book: PriceBook, invoice: Invoice, today: date | None = None
) -> Energy | None:
    """Energy of an invoice's wall time at measured node power; None without a node's power."""
    try:
        power = power_of(cluster, book)
    except InputError:
        return None
    nodes = invoice.devices / cluster.host.devices
    energy_j = power.energy_j(nodes, invoice.wall_s)
    return Energy(
        kwh=energy_j / 3.6e6,
        usd=power.energy_usd(energy_j),
        kg_co2=power.carbon_kg(energy_j),
        figures=power.keys,
        stale=book.stale(today or date.today(), power.keys),
    )


def span_of(
    use: StepUse, cluster: ClusterSpec, book: PriceBook, choices: BillChoices, last: Invoice
) -> tuple[MoneySpan, tuple[Invoice, Invoice | None]] | None:
    """How far the last invoice moves within the ranges of the figures that it used.

    And that invoice with all of them at their cheaper end, and at their dearer one (None: the run
    never ends there).
    """
    per: dict[str, Per] = {p.replace("-", " "): p for p in PERS}
    # A cluster's own price was recognised as the book's: it moves with the book's range.
    offer = choices.offer or ("on-demand" if last.offer == "on-demand" else "")
    alone = replace(choices, per=(per[last.basis],), offer=offer)

    def invoice(moved: PriceBook) -> Invoice:
        pricing = Pricing(rates_of(cluster, moved, alone), moved, choices.today)
        terms = alone.terms if alone.terms_at is None else alone.terms_at(moved)
        return invoices_of(use, pricing, replace(alone, terms=terms))[-1]

    span = money_span(last.figures, book, lambda moved: invoice(moved).usd)
    if span is None:
        return None
    dearest = None if span.usd_high is None else invoice(span.book_at(book, dear=True))
    return span, (invoice(span.book_at(book, dear=False)), dearest)


def line_ends(
    invoice: Invoice, ends: Sequence[Invoice | None]
) -> tuple[tuple[float, float | None], ...]:
    """Money of each line with all figures at their cheaper and at their dearer end."""

    def key(x: InvoiceLine) -> tuple[str, ...]:
        return x.phase, x.cause, x.stage, x.tier, x.item

    cheap, dear = (None if e is None else {key(x): x.usd for x in e.lines} for e in ends)
    return tuple(
        (
            0.0 if cheap is None else cheap.get(key(x), 0.0),
            None if dear is None else dear.get(key(x), 0.0),
        )
        for x in invoice.lines
    )


def renting_of(cluster: ClusterSpec, book: PriceBook, choices: BillChoices) -> Renting:
    """What renting costs against which owning is judged: the offer's hour, or the cluster's own.

    Spot hours pay for preemptions at the book's rate, restarts and saves. Raises InputError where
    there is no price.
    """
    offer = "" if choices.offer == OWNED or choices.owned is not None else choices.offer
    rates = rates_of(cluster, book, replace(choices, offer=offer, owned=None))
    stated: dict[str, object] = {"usd_per_hour": rates.usd_per_device_hour}
    if offer.startswith(CAPITAL_OFFERS):
        stated |= {"kind": "reserved", "term_months": 36.0 if offer.endswith("3y") else 12.0}
    if offer.startswith("spot"):
        nodes = cluster.devices / cluster.host.devices
        stated |= {
            "kind": "spot",
            "preemptions_per_hour": nodes * book.value("spot.preemption.rate", "1/instance-hour"),
            "restart_s": book.value("failure.restart.time", "s"),
            "checkpoint_block_s": book.value("failure.checkpoint.block", "s"),
        }
    return validate(Renting, stated, "renting")


def bill_answer(
    use: StepUse,
    cluster: ClusterSpec,
    book: PriceBook,
    choices: BillChoices,
    *,
    plan: PlanDoc | None = None,
    memory: MemoryDoc | None = None,
    against: StepUse | None = None,
) -> BillAnswer:
    """The whole answer. Raises InputError for offers, terms or figures that there are not."""
    rates = rates_of(cluster, book, choices)
    pricing = Pricing(rates, book, choices.today)
    invoices = invoices_of(use, pricing, choices)
    last = invoices[-1]
    others = () if against is None else invoices_of(against, pricing, choices)
    spread = span_of(use, cluster, book, choices, last)
    hour = last.usd / (last.device_s / 3600)
    step = step_bill(
        use.mean_cause_s(),
        use.devices,
        use.step_time_s,
        rates.usd_per_device_hour,
        use.tokens_per_step,
        choices.terms.tokens if choices.terms else None,
    )
    return BillAnswer(
        **step.model_dump(),
        title=use.title,
        plan=plan,
        memory=memory,
        terms=choices.terms,
        invoices=invoices,
        energy=energy_of(cluster, book, last, choices.today),
        worth=worth_of(
            last.devices,
            last.idle_frac,
            choices.recover_frac,
            hour,
            last.wall_s,
            choices.fleet_devices,
        ),
        span=None if spread is None else spread[0],
        line_usd=() if spread is None else line_ends(last, spread[1]),
        against=others,
        comparison=compare(last, others[-1]) if others else None,
    )


def terms_of_offer(
    terms: RunTerms | None, offer: str, book: PriceBook, cluster: ClusterSpec
) -> RunTerms | None:
    """Terms under an offer: spot instances are taken away at the book's rate, node by node.

    Each loss stops the whole job, so rates of failures and of preemptions add.
    """
    if terms is None or not offer.startswith("spot"):
        return terms
    key = "spot.preemption.rate"
    lost_per_device_h = book.value(key, "1/instance-hour") / cluster.host.devices
    if terms.device_mtbf_h is not None:
        lost_per_device_h += 1 / terms.device_mtbf_h
    figures = tuple(dict.fromkeys((*terms.figures, key)))
    return terms.model_copy(update={"device_mtbf_h": 1 / lost_per_device_h, "figures": figures})


def terms_with(
    book: PriceBook, tokens: float | None, params: float, stated: dict[str, object]
) -> RunTerms | None:
    """Terms of the run: the book's failures and checkpoints, and what the user states instead."""
    if tokens is None and "tokens" not in stated:
        if stated:
            raise InputError("terms of a run need its tokens: --tokens 15T, or `tokens` in --run")
        return None
    if tokens is not None and "tokens" in stated:
        raise InputError("tokens stand both in --tokens and in the file of --run: once")
    known = float(tokens) if tokens is not None else 1.0
    base = terms_of_book(book, known, params).model_dump()
    return validate(RunTerms, {**base, **stated}, "terms of the run")
