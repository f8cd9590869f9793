"""torchrun, Slurm and Kubernetes: gangsaw's own trainer with every field of the plan as a flag."""

from __future__ import annotations

import re
import shlex

from gangsaw import __version__
from gangsaw.export.document import ExportFile, header, nodes_of, plan_hash
from gangsaw.spec import Job, Plan


def plan_toml(job: Job, plan: Plan) -> str:
    """The plan as the TOML that `gangsaw train` reads; a field that is not set is left out."""
    rows = []
    for name, value in plan.model_dump(mode="json").items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, str):
            text = f'"{value}"'
        else:
            text = repr(value)
        rows.append(f"{name} = {text}\n")
    return header(job, plan) + "".join(rows)


def precision_of(job: Job) -> str:
    """The precision that gangsaw's trainer has: fp32, else bf16."""
    return "fp32" if job.recipe.precision == "fp32" else "bf16"


def _launch(job: Job, plan: Plan, nodes: str, endpoint: str) -> list[str]:
    _, per_node = nodes_of(job, plan)
    return [
        "torchrun", "--nnodes", nodes, "--nproc-per-node", str(per_node), "--rdzv-backend", "c10d",
        "--rdzv-id", f"gangsaw-{plan_hash(plan)}", "--rdzv-endpoint", endpoint, "--no-python",
        "gangsaw", "train", "plan.toml", "--model", job.model.name, "--data", '"$DATA"',
        "--seq-len", str(job.recipe.seq_len), "--num-microbatches", str(plan.num_microbatches),
        "--precision", precision_of(job), "--out", "run",
    ]  # fmt: skip


def _lines(parts: list[str]) -> str:
    """Words over lines, a flag with its value on each."""
    rows: list[list[str]] = [[]]
    for part in parts:
        if part.startswith("--") and rows[-1]:
            rows.append([])
        rows[-1].append(part if part.startswith('"$') else shlex.quote(part))
    return " \\\n    ".join(" ".join(row) for row in rows)


def _body(job: Job, plan: Plan, before: str, endpoint: str) -> str:
    """Write the plan, then start the ranks."""
    nodes, _ = nodes_of(job, plan)
    return (
        f"cat > plan.toml <<'TOML'\n{plan_toml(job, plan)}TOML\n"
        + before + _lines(_launch(job, plan, str(nodes), endpoint)) + "\n"
    )  # fmt: skip


def torchrun(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`launch.sh`, the same on every node."""
    text = (
        "#!/bin/bash\n" + header(job, plan) + "set -euo pipefail\n"
        'HEAD="${HEAD:-localhost:29500}"\nDATA="${DATA:-corpus.txt}"\n'
        + _body(job, plan, "", '"$HEAD"')
    )  # fmt: skip
    return (ExportFile(name="launch.sh", text=text, main=True),)


def slurm(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`job.sbatch`: one task a node, which starts torchrun."""
    nodes, per_node = nodes_of(job, plan)
    text = (
        "#!/bin/bash\n"
        f"#SBATCH --job-name=gangsaw-{plan_hash(plan)}\n#SBATCH --nodes={nodes}\n"
        f"#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={per_node}\n"
        f"#SBATCH --cpus-per-task={8 * per_node}\n#SBATCH --exclusive\n"
        "#SBATCH --time=24:00:00\n#SBATCH --output=%x-%j.out\n" + header(job, plan)
        + "set -euo pipefail\n"
        'HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500"\n'
        'DATA="${DATA:-corpus.txt}"\n'
        + _body(job, plan, "srun --kill-on-bad-exit=1 ", '"$HEAD"')
    )  # fmt: skip
    return (ExportFile(name="job.sbatch", text=text, main=True),)


def kubernetes(job: Job, plan: Plan) -> tuple[ExportFile, ...]:
    """`job.yaml`: an indexed Job with a pod a node and a headless Service for the rendezvous."""
    nodes, per_node = nodes_of(job, plan)
    name = re.sub(r"[^a-z0-9-]+", "-", f"gangsaw-{job.model.name}".lower())[:40].strip("-")
    name = f"{name}-{plan_hash(plan)[:8]}"
    head = f"{name}-0.{name}:29500"
    script = 'DATA="${DATA:-/data/corpus.txt}"\n' + _body(job, plan, "", head)
    args = "".join(f"              {line}\n" for line in script.splitlines())
    text = f"""{header(job, plan)}apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  selector:
    job-name: {name}
  ports:
    - name: rendezvous
      port: 29500
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  annotations:
    gangsaw/version: {_yaml(__version__)}
    gangsaw/plan: {_yaml(plan_hash(plan))}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: 3
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      containers:
        - name: train
          image: gangsaw:{__version__}
          command:
            - bash
            - -euc
            - |
{args}          resources:
            limits:
              nvidia.com/gpu: {per_node}
          volumeMounts:
            - name: shm
              mountPath: /dev/shm
      volumes:
        - name: shm
          emptyDir:
            medium: Memory
"""
    return (ExportFile(name="job.yaml", text=text, main=True),)


def _yaml(word: str) -> str:
    """A word as a YAML string."""
    return "'" + word.replace("'", "''") + "'"
