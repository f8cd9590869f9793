"""Step times predicted from `gangsaw measure` beside steps that were run, on this machine.

Prints, for one and two ranks, predicted and measured seconds of a step, and how far the steps
vary by themselves: without a quiet machine the comparison says little.
"""

from __future__ import annotations

import json
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


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for ranks in (1, 2):
            out = root / f"measure{ranks}"
            measure(MeasureConfig(out=str(out), ranks=ranks, model=model(), seq_len=SEQ))
            cluster, facts = measured_cluster(out)
            for text, plan in PLANS.items():
                if plan.devices != ranks:
                    continue
                recipe = Recipe(
                    seq_len=SEQ,
                    global_batch=plan.dp * plan.num_microbatches * plan.mbs,
                    precision="fp32",
                )
                stack = load_stack("unknown")
                stack = stack.model_copy(
                    update={"time": stack.time.model_copy(update={"step_overhead_s": 0.005})}
                )
                job = Job(model=model(), recipe=recipe, cluster=cluster, stack=stack)
                said = estimate(job, plan).step_time_s
                seen = run_seconds(plan, root / text.replace(" ", ""))
                middle = statistics.median(seen)
                sys.stdout.write(
                    f"{text}: predicted {format_s(said)}, median {format_s(middle)}, least"
                    f" {format_s(min(seen))}, most {format_s(max(seen))}:"
                    f" {said / middle - 1:+.0%} of the median, noisy probes"
                    f" {facts['noise']['noisy_frac']:.0%}\n"
                )


if __name__ == "__main__":
    main()
