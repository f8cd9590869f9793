"""Step times predicted from `gangsaw measure` beside steps that were run, on this machine.

Measurement and runs take turns over some rounds (argument, 3 without), so that both meet the same
load. Prints, for one and two ranks, medians over the rounds of predicted and measured seconds of a
step, and how far rounds alone differ: without a quiet machine the comparison says little.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from gangsaw.read.stacks import load_stack
from gangsaw.run.config import TrainConfig
from gangsaw.run.demo import demo_config
from gangsaw.run.launch import train
from gangsaw.run.measure import MeasureConfig, measure, measured_cluster
from gangsaw.search.estimate import estimate
from gangsaw.spec import AttentionSpec, Job, LayerKind, MlpSpec, ModelSpec, Plan, Recipe
from gangsaw.units import format_s

SEQ, STEPS = 256, 12
PLANS = {
    "one rank": Plan(num_microbatches=4),
    "dp 2": Plan(dp=2, num_microbatches=4),
    "pp 2": Plan(pp=2, num_microbatches=8),
    "tp 2": Plan(tp=2, num_microbatches=4),
}


def model() -> ModelSpec:
    attention = AttentionSpec(heads=8, kv_heads=4, head_dim=64, v_head_dim=64)
    kind = LayerKind(name="layer", hidden=512, attention=attention, mlp=MlpSpec(ffn=1408))
    return ModelSpec(
        name="bench", hidden=512, vocab=1024, kinds=(kind,), order=(0,) * 8, final_norm_params=512
    )


def run_seconds(plan: Plan, folder: Path) -> list[float]:
    cfg = demo_config(str(folder)).model_copy(
        update={"model": model(), "plan": plan, "seq_len": SEQ, "steps": STEPS, "trace_steps": 0}
    )
    out = train(TrainConfig.model_validate(cfg.model_dump()))
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [r["seconds"] for r in rows[2:]]


def predicted_s(folder: Path, plan: Plan) -> float:
    """Seconds of a step by the cluster that was measured in `folder`."""
    cluster, _ = measured_cluster(folder)
    recipe = Recipe(
        seq_len=SEQ, global_batch=plan.dp * plan.num_microbatches * plan.mbs, precision="fp32"
    )
    stack = load_stack("unknown")
    stack = stack.model_copy(
        update={"time": stack.time.model_copy(update={"step_overhead_s": 0.005})}
    )
    return estimate(
        Job(model=model(), recipe=recipe, cluster=cluster, stack=stack), plan
    ).step_time_s


def main() -> None:
    """Rounds of a measurement and then runs; each figure is the median over the rounds."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    said: dict[str, list[float]] = {}
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(rounds):
            root = Path(name) / str(number)
            for ranks in (1, 2):
                out = root / f"measure{ranks}"
                measure(MeasureConfig(out=str(out), ranks=ranks, model=model(), seq_len=SEQ))
                for text, plan in PLANS.items():
                    if plan.devices == ranks:
                        said.setdefault(text, []).append(predicted_s(out, plan))
                        steps = run_seconds(plan, root / text.replace(" ", ""))
                        # What measurements are fitted to: load only ever adds time.
                        seen.setdefault(text, []).append(statistics.quantiles(steps, n=4)[0])
            sys.stdout.write(f"round {number + 1}, load {os.getloadavg()[0]:.1f}\n")
            sys.stdout.flush()
    errors = []
    for text, found in seen.items():
        errors.append(statistics.median(said[text]) / statistics.median(found) - 1)
        sys.stdout.write(
            f"{text}: predicted {format_s(statistics.median(said[text]))}, measured"
            f" {format_s(statistics.median(found))}: {errors[-1]:+.0%}; rounds alone differ by"
            f" {max(found) / min(found) - 1:.0%} measured,"
            f" {max(said[text]) / min(said[text]) - 1:.0%} predicted\n"
        )
    sys.stdout.write(f"median absolute error {statistics.median(map(abs, errors)):.0%}\n")


if __name__ == "__main__":
    main()
