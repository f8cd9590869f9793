"""`gangsaw calibrate --layer-trace`: a stack profile of one's own from one recorded layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.files import put
from gangsaw.cli.flags import LayerFlags, OutputFlags, SiteFlags
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from gangsaw.fit.layer_stack import LayerJob, LayerStack, Recording

DEFAULT_NAME = "own"


def layer_command(
    args: SiteFlags, flags: LayerFlags, output: OutputFlags, path: Path | None
) -> None:
    """Make the profile, write it, say what was measured."""
    for name in ("file", "suggest", "gemm_sweep"):
        if getattr(args, name) is not None:
            raise InputError(
                "--layer-trace makes a stack profile of one layer and takes no"
                f" {'RUNS.jsonl' if name == 'file' else '--' + name.replace('_', '-')}."
                " Legal: two commands, one for each"
            )
    from gangsaw.fit.calibrate import CalibrateResult
    from gangsaw.fit.layer_stack import layer_stack, toml_of_stack
    from gangsaw.trace.layer_file import read_layer

    recording = read_layer(str(flags.layer_trace))
    name = path.stem if path else DEFAULT_NAME
    found = layer_stack(name, recording, _job(flags, recording), flags.stack)
    written = ""
    if path is not None:
        put(path, toml_of_stack(found))
        written = str(path)
    if output.json:
        screen.write_json(CalibrateResult(layer=found, written=written))
        return
    for line in _lines(found, written):
        screen.emit(f"{line}\n")


def _job(flags: LayerFlags, recording: Recording) -> LayerJob:
    """Model, cut and device of the layer: flags first, then what the file states."""
    from gangsaw.fit.layer_stack import LayerJob, usual_kind
    from gangsaw.read.clusters import load_cluster
    from gangsaw.read.models import load_model
    from gangsaw.read.toml import validate
    from gangsaw.spec.plan import Plan
    from gangsaw.spec.recipe import Precision, Recipe

    facts = recording.facts
    model_name = flags.model or facts.get("model")
    if not model_name:
        raise InputError("--layer-trace needs the model. Legal: --model MODEL, or model in FILE")
    model = load_model(str(model_name))
    usual = {"seq_len": None, "mbs": None, "tp": 1, "cp": 1, "ep": 1, "etp": 1}
    sizes = {name: _whole(flags, facts, name, least) for name, least in usual.items()}
    precision = values.choice(
        "--precision", str(flags.precision or facts.get("precision") or "bf16"), get_args(Precision)
    )
    degrees = {k: v for k, v in sizes.items() if k != "seq_len"}
    fields = {**degrees, "num_microbatches": 1, "sequence_parallel": _spread(flags, facts)}
    plan = validate(Plan, fields, "layer")
    stated = {"seq_len": sizes["seq_len"], "global_batch": sizes["mbs"], "precision": precision}
    recipe = validate(Recipe, stated, "layer")
    kind = usual_kind(model)
    index = flags.layer_index if flags.layer_index is not None else facts.get("layer_index")
    if index is not None:
        kind = model.order[values.whole("--layer-index", str(index), 0, model.layers - 1)]
    cluster = load_cluster(flags.cluster) if flags.cluster else None
    return LayerJob(model, recipe, plan, kind, cluster)


def _spread(flags: LayerFlags, facts: Any) -> bool:  # noqa: ANN401
    """Whether the layer ran under sequence parallelism."""
    if flags.sequence_parallel is not None:
        return flags.sequence_parallel
    stated = facts.get("sequence_parallel", True)
    if isinstance(stated, bool):
        return stated
    raise InputError(f"sequence_parallel={stated!r} is no flag. Legal: true, false")


def _whole(flags: LayerFlags, facts: Any, name: str, usual: int | None) -> int:  # noqa: ANN401
    """A size from its flag, the file, or its default."""
    typed = getattr(flags, name, None)
    value = typed if typed is not None else facts.get(name, usual)
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        raise InputError(f"the file does not state {name}. Legal: {flag} N")
    return values.whole(flag, str(value), 1, 10**8)


def _lines(found: LayerStack, written: str) -> list[str]:
    """The answer as plain lines."""
    how = {"stated": "as stated", "module": "by the layer's module"}.get(found.base_by, "nearest")
    out = [
        f"one layer keeps {found.kept_bytes:.0f} bytes; the profile counts"
        f" {found.counted_bytes:.0f}",
        f"base: {found.base} ({how}; its own count is {100 * found.base_distance_frac:.1f} % away)",
    ]
    for e in found.entries:
        if e.measured:
            plain = isinstance(e.value, (bool, str))
            shown = str(e.value).lower() if plain else f"{e.value:.4g}"
            out.append(f"measured {e.entry} = {shown}: {e.said}")
    taken = sum(not e.measured for e in found.entries)
    out.append(f"from {found.base}: the other {taken} entries")
    if found.predicted_forward_s and found.predicted_backward_s and found.forward_s:
        out.append(
            f"forward {1e3 * found.forward_s:.3g} ms, predicted"
            f" {1e3 * found.predicted_forward_s:.3g}; backward"
            f" {1e3 * (found.backward_s or 0.0):.3g} ms, predicted"
            f" {1e3 * found.predicted_backward_s:.3g}"
        )
    out += [f"note: {note}" for note in found.notes]
    if written:
        out.append(f"stack profile: {written}")
    return out
