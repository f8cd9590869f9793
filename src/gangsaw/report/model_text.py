"""What is in a model, as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gangsaw.cost.summary import ModelSummary
from gangsaw.report.text import plain_table
from gangsaw.units import format_count, format_frac, significant


def model_text(summary: ModelSummary, console: Console) -> None:
    """Parameters by group (exact), shapes of each kind of layer, FLOPs and cache a token."""
    head = f"{summary.name}: {format_count(summary.params)} parameters"
    if summary.active_params != summary.params:
        head += f", {format_count(summary.active_params)} active for a token"
    console.print(Text(head, style="bold"))
    console.print(
        Text(
            f"{summary.num_layers} layers, hidden {summary.hidden:,}, vocabulary"
            f" {summary.vocab:,}, embedding and head {'tied' if summary.tied else 'apart'}"
        )
    )
    console.print()
    _groups(summary, console)
    _kinds(summary, console)
    _rates(summary, console)
    console.print(Text(f"source: {summary.source}", style="dim"))
    for note in summary.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _groups(summary: ModelSummary, console: Console) -> None:
    table = plain_table(
        ("group", "left"), ("layers", "right"), ("parameters each", "right"),
        ("active each", "right"), ("parameters", "right"), ("share", "right"),
    )  # fmt: skip
    rows: list[tuple[str, str, int | None, int | None, int]] = [
        ("embedding", "", None, None, summary.embedding_params)
    ]
    if summary.vision is not None:
        tower = summary.vision
        rows.append(("vision tower", str(tower.layers), None, None, tower.params))
        rows.append(("projector", "", None, None, tower.projector_params))
    for kind in summary.layers:
        total = kind.count * kind.params
        rows.append((kind.kind, str(kind.count), kind.params, kind.active_params, total))
    rows.append(("norms around", "", None, None, summary.other_params))
    rows.append(("head", "", None, None, summary.head_params))
    for name, count, each, active, total in rows:
        table.add_row(
            name, count, *("" if v is None else f"{v:,}" for v in (each, active)), f"{total:,}",
            format_frac(total / summary.params),
        )  # fmt: skip
    table.add_row("total", "", "", "", f"{summary.params:,}", "100.0 %", style="bold")
    table.add_row("active for a token", "", "", "", f"{summary.active_params:,}",
                  format_frac(summary.active_params / summary.params))  # fmt: skip
    if summary.mtp is not None:
        table.add_row("multi-token, apart", str(summary.mtp.layers), "", "",
                      f"{summary.mtp.params:,}", "")  # fmt: skip
    console.print(Padding(table, (0, 0, 1, 0)))


def _kinds(summary: ModelSummary, console: Console) -> None:
    table = plain_table(
        ("one layer", "left"), ("attention", "right"), ("MLP", "right"), ("experts", "right"),
        ("router", "right"), ("norms", "right"), ("window", "right"), ("cache/token", "right"),
        ("forward", "right"),
    )  # fmt: skip
    for kind in summary.layers:
        experts = f"{kind.topk} of {kind.experts}" if kind.experts else "-"
        table.add_row(
            kind.kind, format_count(kind.attention_params), format_count(kind.mlp_params), experts,
            format_count(kind.router_params), format_count(kind.norm_params),
            f"{kind.window:,}" if kind.window else "-", f"{kind.kv_bytes_per_token:,.0f} B",
            f"{format_count(kind.forward_flops_per_token)} FLOP",
        )  # fmt: skip
    console.print(Padding(table, (0, 0, 1, 0)))


def _rates(summary: ModelSummary, console: Console) -> None:
    table = plain_table(("", "left"), ("", "right"), ("", "left"))
    table.show_header = False
    table.add_row(
        "training FLOPs a token", f"{format_count(summary.flops_per_token)} FLOP",
        f"at {summary.seq_len:,} tokens, causal attention as half the square",
    )  # fmt: skip
    table.add_row("", f"{format_count(summary.flops_per_token_full_square)} FLOP", "square in full")
    table.add_row(
        "KV cache a token", f"{summary.kv_bytes_per_token:,.0f} B", "16-bit keys and values"
    )
    gib = summary.kv_bytes_per_sequence / 2**30
    table.add_row(
        "KV cache a sequence", f"{significant(gib)} GiB", f"of {summary.seq_len:,} tokens"
    )
    console.print(Padding(table, (0, 0, 1, 0)))
