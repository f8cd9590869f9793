"""`gangsaw calibrate`: measured steps of this site -> a site file that sharpens predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import LayerFlags, OutputFlags, SiteFlags, takes
from gangsaw.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from gangsaw.fit.calibrate import CalibrateResult
    from gangsaw.spec.site import SiteGemm

MOST = 100


@takes(SiteFlags, LayerFlags, OutputFlags)
def command(args: SiteFlags, layer: LayerFlags, output: OutputFlags) -> None:
    """Learn from measured steps, name the plans to measure next, or profile a recorded layer."""
    from gangsaw.cli.files import read_rows, writable
    from gangsaw.cli.options import seed_of

    seed_of(output)
    path = writable("--out", args.out, (".toml",)) if args.out else None
    if layer.layer_trace is not None:
        from gangsaw.cli.layer import layer_command

        layer_command(args, layer, output, path)
        return
    given = [name for name, value in vars(layer).items() if value is not None]
    if args.file is None and args.gemm_sweep is not None and given == ["cluster"]:
        _products_alone(args, str(layer.cluster), path, output)
        return
    if args.file is None or given:
        what = f"--{given[0].replace('_', '-')} belongs to --layer-trace" if given else "no file"
        raise InputError(
            f"{what}. Legal: gangsaw calibrate RUNS.jsonl, or --gemm-sweep FILE --cluster CLUSTER,"
            " or --layer-trace FILE --model MODEL"
        )
    if args.suggest is not None and (path is not None or args.gemm_sweep is not None):
        raise InputError(
            "--suggest reads plans and writes nothing. Legal: without -o, --gemm-sweep"
        )
    rows = read_rows(args.file)
    from gangsaw.fit import calibrate

    if args.suggest is not None:
        result = calibrate.suggest(rows, values.whole("--suggest", args.suggest, 1, MOST))
    else:
        result = calibrate.calibrate(rows, _gemm(args.gemm_sweep, rows))
        result = _written(result, path)
    _show(result, output)


def _show(result: CalibrateResult, output: OutputFlags) -> None:
    if output.json:
        screen.write_json(result)
        return
    for line in _lines(result):
        screen.emit(f"{line}\n")


def _products_alone(args: SiteFlags, cluster: str, path: Path | None, output: OutputFlags) -> None:
    """A site of the machine's own matrix products, no step measured yet."""
    from pathlib import Path

    from gangsaw.fit import calibrate
    from gangsaw.read.clusters import load_cluster

    device = load_cluster(cluster).device.name
    gemm = calibrate.gemm_of(Path(str(args.gemm_sweep)), device)
    _show(_written(calibrate.calibrate_products(gemm, device), path), output)


def _gemm(name: str | None, rows: list[dict[str, Any]]) -> SiteGemm | None:
    """The machine's own products, for the device of the rows."""
    if name is None:
        return None
    from pathlib import Path

    from gangsaw.fit.calibrate import gemm_of

    hardware = rows[0].get("hardware")
    device = hardware.get("device") if isinstance(hardware, dict) else None
    if not device:
        raise InputError("--gemm-sweep needs hardware.device in the first row")
    return gemm_of(Path(name), str(device))


def _written(result: CalibrateResult, path: Path | None) -> CalibrateResult:
    if path is None or result.site is None:
        return result
    from gangsaw.cli.files import put
    from gangsaw.fit.calibrate import toml_of_site

    put(path, toml_of_site(result.site))
    return result.model_copy(update={"written": str(path)})


def _lines(result: CalibrateResult) -> list[str]:
    """The answer as plain lines."""
    out = [
        f"measure {s.id}: mean 80 % width {100 * s.width_before_frac:.0f} %"
        f" -> {100 * s.width_after_frac:.0f} %"
        for s in result.suggested
    ]
    if result.site is not None:
        doc = result.site
        if doc.rows:
            out.append(f"{len(doc.rows)} rows of stack {doc.stack} on {doc.device}")
        out += [f"your runs say: {line}" for line in result.said]
        before, after = doc.interval_before_frac, doc.interval_after_frac
        if before is not None and after is not None:
            out.append(f"mean 80 % width {100 * before:.0f} % -> {100 * after:.0f} %")
        if doc.gemm is not None:
            out.append(
                f"matrix products: {100 * doc.gemm.gemm_frac:.0f} % of peak, half rate at"
                f" k={doc.gemm.gemm_k0:.0f}, {doc.gemm.points} points,"
                f" error {100 * doc.gemm.error_frac:.1f} %"
            )
    out += [
        f"likely wrong, measure again: {w.id}: {w.measured_s:.4g} s, expected {w.expected_s:.3g} s;"
        f" {w.said}"
        for w in result.wrong
    ]
    if result.site is not None:
        out += [f"note: {note}" for note in result.site.notes]
    out += [f"skipped {why}" for why in result.skipped]
    if result.written:
        out.append(f"site file: {result.written}")
    return out
