"""The flags that several commands share, as frozen dataclasses of what was typed.

A command states which groups it takes; `takes` flattens them into the signature that typer
reads. Values stay text here: `cli.options` turns them into documents with its own messages.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import typer


def _flag(names: str, metavar: str, text: str, panel: str) -> object:
    return typer.Option(*names.split(), metavar=metavar, help=text, rich_help_panel=panel)


def _switch(names: str, text: str, panel: str) -> object:
    return typer.Option(names, help=text, rich_help_panel=panel)


Text = str | None
_R, _P, _L, _O = "Recipe", "Plan", "Limits and goals", "Output"
_Y = "Recorded layer"


@dataclass(frozen=True)
class ModelArg:
    """The model alone."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="catalog name (llama-3.1-405b), a Hugging Face config.json, or a model TOML",
        ),
    ]


@dataclass(frozen=True)
class JobArgs(ModelArg):
    """The model and the cluster."""

    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER",
            help="catalog node and number of devices (h100-sxm:2048), or a cluster TOML",
        ),
    ]


@dataclass(frozen=True)
class LengthFlag:
    """The sequence length alone."""

    seq_len: Annotated[Text, _flag("--seq-len", "N", "tokens a sequence [4096]", _R)] = None


@dataclass(frozen=True)
class RunsArg:
    """A file of measured runs, and how many of them may be used to calibrate."""

    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="measured runs, one JSON object a line")
    ]
    calibrate: Annotated[
        Text,
        _flag("--calibrate", "K", "rows of each source and device to calibrate on [0]", _L),
    ] = None


@dataclass(frozen=True)
class SiteFlags:
    """Measured steps of a site, and what becomes of them."""

    file: Annotated[
        Text, typer.Argument(metavar="[RUNS.jsonl]", help="measured runs, one JSON object a line")
    ] = None
    out: Annotated[
        Text, _flag("-o --out", "FILE", "write the site file, or the stack profile (.toml)", _O)
    ] = None
    suggest: Annotated[
        Text, _flag("--suggest", "N", "name N plans of the file to measure next", _L)
    ] = None
    gemm_sweep: Annotated[
        Text, _flag("--gemm-sweep", "FILE", "the machine's own matrix products: m, n, k, time", _L)
    ] = None


@dataclass(frozen=True)
class LayerFlags:
    """One recorded layer, of which a stack profile is made."""

    layer_trace: Annotated[
        Text, _flag("--layer-trace", "FILE", "one recorded layer: make a stack profile of it", _Y)
    ] = None
    model: Annotated[Text, _flag("--model", "MODEL", "whose layer it is", _Y)] = None
    cluster: Annotated[
        Text, _flag("--cluster", "CLUSTER", "its device, for the time entries (h100-sxm:8)", _Y)
    ] = None
    stack: Annotated[
        Text, _flag("--stack", "NAME", "profile for what it does not tell [the nearest]", _Y)
    ] = None
    seq_len: Annotated[Text, _flag("--seq-len", "N", "tokens a sequence, as recorded", _Y)] = None
    mbs: Annotated[Text, _flag("--mbs", "N", "sequences, as recorded", _Y)] = None
    tp: Annotated[Text, _flag("--tp", "N", "tensor parallel, as recorded [1]", _Y)] = None
    sequence_parallel: Annotated[
        bool | None,
        _switch("--sequence-parallel/--no-sequence-parallel", "as recorded [on with --tp]", _Y),
    ] = None
    precision: Annotated[Text, _flag("--precision", "P", "as recorded [bf16]", _Y)] = None
    layer_index: Annotated[
        Text, _flag("--layer-index", "N", "number of the layer [one of the usual kind]", _Y)
    ] = None


@dataclass(frozen=True)
class VerbArg:
    """The name of a verb."""

    verb: Annotated[str, typer.Argument(metavar="VERB", help="a verb that has --json")]


@dataclass(frozen=True)
class RecipeFlags:
    """What is trained, with which software, at which prices."""

    seq_len: Annotated[Text, _flag("--seq-len", "N", "tokens a sequence [4096]", _R)] = None
    global_batch: Annotated[
        Text, _flag("--global-batch", "N", "sequences a step [about 4M tokens]", _R)
    ] = None
    precision: Annotated[Text, _flag("--precision", "P", "bf16, fp16, fp8, fp32 [bf16]", _R)] = None
    task: Annotated[Text, _flag("--task", "T", "pretrain, sft, lora, qlora [pretrain]", _R)] = None
    lora_rank: Annotated[Text, _flag("--lora-rank", "N", "rank of the adapters [16]", _R)] = None
    tokens: Annotated[Text, _flag("--tokens", "N", "tokens of the whole run, as 15T", _R)] = None
    stack: Annotated[
        Text, _flag("--stack", "NAME", "software generation that trains [unknown: a mixture]", _R)
    ] = None
    prices: Annotated[
        Text, _flag("--prices", "FILE", "own price figures (TOML) on top of the catalog's", _R)
    ] = None


@dataclass(frozen=True)
class SiteRecipeFlags(RecipeFlags):
    """The recipe, and what the user's own measured steps taught."""

    site: Annotated[
        Text, _flag("--site", "FILE", "own measured steps, made by gangsaw calibrate", _R)
    ] = None


@dataclass(frozen=True)
class PlanFlags:
    """How the job is cut; in `plan` each flag fixes its part of every plan."""

    tp: Annotated[Text, _flag("--tp", "N", "tensor parallel", _P)] = None
    cp: Annotated[Text, _flag("--cp", "N", "context parallel", _P)] = None
    pp: Annotated[Text, _flag("--pp", "N", "pipeline parallel", _P)] = None
    vpp: Annotated[Text, _flag("--vpp", "N", "pipeline chunks a rank", _P)] = None
    dp: Annotated[Text, _flag("--dp", "N", "data parallel [what is left]", _P)] = None
    ep: Annotated[Text, _flag("--ep", "N", "expert parallel", _P)] = None
    etp: Annotated[Text, _flag("--etp", "N", "tensor parallel inside experts", _P)] = None
    mbs: Annotated[Text, _flag("--mbs", "N", "sequences a microbatch", _P)] = None
    schedule: Annotated[
        Text, _flag("--schedule", "NAME", "gpipe, 1f1b, interleaved, zb-v, auto, file:PATH...", _P)
    ] = None
    recompute: Annotated[
        Text, _flag("--recompute", "R", "none, selective, full, full:N layers a chunk", _P)
    ] = None
    zero: Annotated[Text, _flag("--zero", "0-3", "what data parallel ranks shard", _P)] = None
    shard_group: Annotated[
        Text, _flag("--shard-group", "N", "ranks that share one shard set [dp x cp]", _P)
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        _switch("--sequence-parallel/--no-sequence-parallel", "norms split by TP [on]", _P),
    ] = None
    offload: Annotated[
        list[str] | None,
        _flag("--offload", "WHAT", "optimizer, activations, or a share: optimizer:0.5", _P),
    ] = None
    stages: Annotated[
        Text, _flag("--stages", "10,12,..", "layers of each of the pp x vpp chunks", _P)
    ] = None
    rank_order: Annotated[
        Text, _flag("--rank-order", "ORDER", "innermost first [tp-cp-ep-dp-pp]", _P)
    ] = None
    plan: Annotated[
        Text, _flag("--plan", "FILE", "these flags as TOML (or JSON); flags go before it", _P)
    ] = None


@dataclass(frozen=True)
class LimitFlags:
    """Limits and goals of a search."""

    deadline: Annotated[Text, _flag("--deadline", "TIME", "for --tokens, as 30d", _L)] = None
    budget: Annotated[Text, _flag("--budget", "USD", "for --tokens, as 2e6USD", _L)] = None
    max_devices: Annotated[Text, _flag("--max-devices", "N", "search fewer devices too", _L)] = None
    headroom: Annotated[
        Text, _flag("--headroom", "FRAC", "memory to leave free, as 0.1 or 10%", _L)
    ] = None
    top: Annotated[Text, _flag("--top", "N", "plans to list [5]", _L)] = None
    exhaustive: Annotated[
        bool, _switch("--exhaustive", "evaluate also plans that cannot be the best", _L)
    ] = False


@dataclass(frozen=True)
class OutputFlags:
    """How the answer is given."""

    json: Annotated[bool, _switch("--json", "one JSON document on stdout", _O)] = False
    seed: Annotated[
        Text, _flag("--seed", "N", "of what is drawn at random; equal seeds, equal answers", _O)
    ] = None


@dataclass(frozen=True)
class ReportFlags(OutputFlags):
    """How the answer is given, and where the HTML report goes."""

    report: Annotated[
        Text,
        _flag("--report", "FILE", "write the report: a page (.html) or its picture (.svg)", _O),
    ] = None


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function of flag groups be a command whose signature has all their flags."""

    def wrap(body: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        owner: dict[str, type] = {}
        for group in groups:
            hints = get_type_hints(group, include_extras=True)
            for field in dataclasses.fields(group):
                default = field.default
                owner[field.name] = group
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=inspect.Parameter.empty
                        if default is dataclasses.MISSING
                        else default,
                        annotation=hints[field.name],
                    )
                )

        def command(**typed: object) -> None:
            parts = (
                group(**{k: v for k, v in typed.items() if owner[k] is group}) for group in groups
            )
            try:
                body(*parts)
            except EOFError as fault:
                # typer would take it for an end of typing, and say that it was interrupted.
                raise RuntimeError(f"a file ended too early: {fault}") from fault

        # typer reads these, and not the body's own parameters.
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = body.__doc__
        return command

    return wrap
