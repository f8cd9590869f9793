"""Peak memory predicted for the torchtitan stack beside torch's own tracker on fake tensors.

Writes docs/memory-oracle.md. Each row traces one rank of one plan: torch's modules, DTensor and
fully_shard on fake tensors with a fake process group; no formula is shared with the prediction.
Arguments: names of cases of CASES and SHORT (all without).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gangsaw.fit.oracle_rows import oracle_lines
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import Job, Plan, Recipe

FULL = "full"
CASES = {
    "8b-fsdp8": ("llama-3.1-8b", Plan(dp=8, zero=3, num_microbatches=2), 2048, (0,)),
    "8b-fsdp8-full": (
        "llama-3.1-8b", Plan(dp=8, zero=3, num_microbatches=2, recompute=FULL), 4096, (0,),
    ),
    "8b-tp2-fsdp4": ("llama-3.1-8b", Plan(dp=4, tp=2, zero=3, num_microbatches=2), 2048, (0,)),
    "70b-tp8-pp4-fsdp2": (
        "llama-3.1-70b", Plan(dp=2, tp=8, pp=4, zero=3, num_microbatches=4), 4096, (0, 3),
    ),
    "405b-tp8-pp16-fsdp4": (
        "llama-3.1-405b",
        Plan(dp=4, tp=8, pp=16, zero=3, num_microbatches=16, recompute=FULL), 8192, (0, 1, 15),
    ),
    "70b-tp8-fsdp8": (
        "llama-3.1-70b",
        Plan(dp=8, tp=8, zero=3, num_microbatches=2, recompute=FULL), 8192, (0,),
    ),
}  # fmt: skip
SHORT = {
    "70b-16-layers-tp8-pp4-fsdp2": ("70b-tp8-pp4-fsdp2", 16, {}, (0, 3)),
    "70b-8-layers-tp8-fsdp8": ("70b-tp8-fsdp8", 8, {}, (0,)),
    "405b-16-layers-tp8-pp8-fsdp4": (
        "405b-tp8-pp16-fsdp4", 16, {"pp": 8, "num_microbatches": 8}, (0, 1, 7),
    ),
}  # fmt: skip
"""Models cut to a number of layers, traced in seconds."""
STORE = Path("docs/memory-oracle.json")


def rows_of(name: str) -> list[dict[str, object]]:
    from gangsaw.run.oracle import trace_rank

    whole, layers, changed, ranks = SHORT.get(name, (name, 0, {}, ()))
    ref, plan, seq_len, all_ranks = CASES[whole]
    plan, ranks = plan.model_copy(update=changed), ranks or all_ranks
    model = load_model(ref)
    if layers:
        model = model.model_copy(update={"order": (0,) * layers})
    batch = plan.dp * plan.mbs * plan.num_microbatches
    cluster = load_cluster(f"h100-sxm:{plan.devices}")
    recipe = Recipe(seq_len=seq_len, global_batch=batch)
    job = Job(model=model, recipe=recipe, cluster=cluster, stack=load_stack("torchtitan"))
    predicted = estimate(job, plan).memory.per_stage
    found: list[dict[str, object]] = []
    for rank in ranks:
        begun = time.perf_counter()
        # torch remembers process groups by name: each trace gets a process of its own.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            traced = pool.submit(trace_rank, model, plan, seq_len, rank).result()
        mine = predicted[rank]
        found.append(
            {
                "case": name, "model": ref, "layers": model.layers, "rank": rank,
                "seq_len": seq_len,
                "plan": plan.model_dump(mode="json", exclude_defaults=True),
                "traced_bytes": traced.peak_bytes, "parts_bytes": traced.parts_bytes,
                "predicted_bytes": mine.peak_allocated_bytes, "phase": mine.phase,
                "error_frac": mine.peak_allocated_bytes / traced.peak_bytes - 1.0,
                "seconds": time.perf_counter() - begun,
            }
        )  # fmt: skip
        print(name, rank, f"{found[-1]['error_frac']:+.1%}", flush=True)
    return found


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "# Peak memory against torch's own tracker",
        "",
        "Allocated bytes of one rank in forward and backward with AdamW state present, traced by",
        "torch's MemTracker on fake tensors (`benchmarks/bench_memory_oracle.py`), beside the",
        "prediction for the `torchtitan` stack. The optimizer's own temporaries are left out.",
        "Embedding, layers and head are groups of their own, as torchtitan has them, and the norms",
        "are its own. Names with a number of layers are models cut to as many.",
        "",
        *oracle_lines(rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = json.loads(STORE.read_text()) if STORE.exists() else []
    names = sys.argv[1:] or [*CASES, *SHORT]
    if wrong := [n for n in names if n not in CASES and n not in SHORT]:
        sys.exit(f"no such case: {', '.join(wrong)}. Legal: {', '.join([*CASES, *SHORT])}")
    for name in names:
        rows = [r for r in rows if r["case"] != name] + rows_of(name)
        STORE.write_text(json.dumps(rows, indent=1))
    Path("docs/memory-oracle.md").write_text(table(rows))


if __name__ == "__main__":
    main()
