"""One rank of a training run: builds its stages, steps, records, saves, resumes."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.profiler import ProfilerActivity, profile

from gangsaw.run import checkpoints
from gangsaw.run.carried import check_resumed
from gangsaw.run.config import TrainConfig
from gangsaw.run.data import Batches, Tokens, load_tokens
from gangsaw.run.model import BuildOptions, Stage, rotary_of
from gangsaw.run.optim import (
    clip,
    gradient_norm,
    learning_rate,
    make_optimizer,
    settle_gradients,
    sum_tied,
)
from gangsaw.run.parallel import Place, check_plan, cut_stage, make_place
from gangsaw.run.pipeline import Rows, Step, boundary, make_loss, make_runtime
from gangsaw.run.schedule import schedule_rows, splits_backward, stage_owners


@dataclass(frozen=True)
class StepRecord:
    """What a step did: the mean loss of its tokens, gradient norm, rate, seconds."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    seconds: float


def log_line(record: StepRecord, begun: int, ranks: int) -> str:
    """A line of `log.jsonl`: the step, and the step behind which this start of the run began.

    A resumed run may be cut otherwise, so that seconds of one start are not those of another.
    """
    return json.dumps({**record.__dict__, "begun": begun, "ranks": ranks}) + "\n"


class Trainer:
    """The stages of this rank with optimizer and data; the process group must be running."""

    def __init__(self, cfg: TrainConfig, tokens: Tokens | None = None) -> None:
        check_plan(cfg.plan, cfg.model, cfg.seq_len)
        _quiet()
        self.cfg, self.step_number = cfg, 0
        device = torch.device(cfg.device)
        self.place = make_place(cfg.plan, device)
        self.rows: Rows = schedule_rows(cfg.plan, cfg.model.layers, cfg.schedule_csv)
        self.owners = stage_owners(self.rows, cfg.plan.pp * cfg.plan.vpp)
        self.numbers = [s for s, r in enumerate(self.owners) if r == self.place.pp_rank]
        opt = BuildOptions(
            seq_len=cfg.seq_len, seed=cfg.seed, rotary=rotary_of(cfg.model), device=cfg.device,
            recompute=cfg.plan.recompute, recompute_layers=cfg.plan.recompute_layers,
        )  # fmt: skip
        split = splits_backward(self.rows)
        self.stages = [
            cut_stage(cfg.model, n, self.place, opt, cfg.precision, split) for n in self.numbers
        ]
        self.optimizer = make_optimizer(self.parameters(), cfg.optimizer)
        if tokens is None:
            tokens = load_tokens(cfg.data, cfg.tokenizer, cfg.token_bytes, cfg.model.vocab)
        self.batches = Batches(tokens, cfg.seq_len, cfg.global_batch, cfg.seed)
        self.step_runner = self._make_step()

    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters of all stages of this rank, a tied one once."""
        seen: dict[int, torch.nn.Parameter] = {}
        for stage in self.stages:
            seen |= {id(p): p for p in stage.parameters()}
        return list(seen.values())

    def _make_step(self) -> Step:
        cfg, plan = self.cfg, self.cfg.plan
        loss = make_loss(self.place, cfg.tokens_per_step)
        step = Step(self.stages, self.place, loss)
        if plan.pp > 1:
            hidden = boundary(self.place, cfg.seq_len, cfg.model.hidden, cfg.precision)
            token = torch.empty(plan.mbs, cfg.seq_len, dtype=torch.int64, device="meta")
            logits = torch.empty(
                plan.mbs, cfg.seq_len, cfg.model.vocab // plan.tp, dtype=hidden.dtype,
                device="meta", requires_grad=True,
            )  # fmt: skip
            examples = (token, hidden, logits)
            step.runtime = make_runtime(
                self.stages, self.numbers, self.place, examples, self.rows, loss
            )
            lowered = step.runtime.pipeline_order_with_comms[self.place.pp_rank]
            step.actions = [str(a) for a in lowered]
        return step

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This data-parallel rank's inputs and targets of a step, [m * mbs, seq_len]."""
        per = self.cfg.plan.mbs * self.cfg.plan.num_microbatches
        x, y = self.batches.rows(step, self.place.dp_rank * per, per)
        dev = self.place.device
        return torch.from_numpy(x).to(dev), torch.from_numpy(y).to(dev)

    def backward(self) -> float:
        """Forward and backward of the current step; finished gradients, mean loss of the step."""
        self.optimizer.zero_grad(set_to_none=True)
        for stage in self.stages:
            stage.train()
        loss = self.step_runner.run(*self.batch(self.step_number))
        settle_gradients(self.parameters())
        if self.cfg.model.tied and self.cfg.plan.pp > 1:
            sum_tied(self.stages, self.place, (self.owners[0], self.owners[-1]))
        for dim in ("rep", "shard", "pp"):
            if self.place.mesh[dim].size() > 1:
                dist.all_reduce(loss, group=self.place.group(dim))
        return float(loss) / self.cfg.plan.dp

    def step(self) -> StepRecord:
        """One optimizer step."""
        cfg, start = self.cfg.optimizer, time.perf_counter()
        loss = self.backward()
        params = self.parameters()
        norm = gradient_norm(params, self._tied_copies(), self.place)
        if cfg.clip_norm > 0:
            clip(params, norm, cfg.clip_norm)
        lr = learning_rate(cfg, self.step_number, self.cfg.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.profiler.record_function("gangsaw:optimizer"):
            self.optimizer.step()
        self.step_number += 1
        seconds = time.perf_counter() - start
        return StepRecord(self.step_number, loss, float(norm), lr, seconds)

    def _tied_copies(self) -> set[int]:
        if not self.cfg.model.tied or self.cfg.plan.pp == 1:
            return set()
        return {id(s.output.weight) for s in self.stages if s.output is not None}

    def named_state(self) -> dict[str, Tensor]:
        """Parameters and AdamW moments by plan-independent names, for saving and loading.

        A tied head on another stage than the embedding carries the embedding's name; where one
        rank holds both copies, the embedding stands for both (see `load`).
        """
        self._fill_moments()
        out: dict[str, Tensor] = {}
        for stage in self.stages:
            for name, param in stage.named_parameters():
                key = name
                if self.cfg.model.tied and name == "output.weight":
                    key = "tok_embeddings.weight"
                if f"model.{key}" in out:
                    continue
                state = self.optimizer.state[param]
                out[f"model.{key}"] = param.detach()
                out[f"exp_avg.{key}"] = state["exp_avg"]
                out[f"exp_avg_sq.{key}"] = state["exp_avg_sq"]
        return out

    def _copy_tied(self) -> None:
        """Give a tied head what was loaded into the embedding, where this rank holds both."""
        first = next((s for s in self.stages if s.first), None)
        last = next((s for s in self.stages if s.last), None)
        if not self.cfg.model.tied or first is None or last is None or first is last:
            return
        source: Any = first.tok_embeddings.weight  # type: ignore[union-attr]
        target: Any = last.output.weight  # type: ignore[union-attr]
        with torch.no_grad():
            target.copy_(source)
        for name in ("exp_avg", "exp_avg_sq"):
            self.optimizer.state[target][name].copy_(self.optimizer.state[source][name])

    def _fill_moments(self) -> None:
        """Make the optimizer state exist before the first step, so that it can be loaded into."""
        for param in self.parameters():
            state = self.optimizer.state[param]
            if not state:
                state["step"] = torch.tensor(float(self.step_number))
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)

    def save(self) -> Path:
        """Write a checkpoint of the state behind the last step."""
        meta = {"step": self.step_number, "config": self.cfg.model_dump(mode="json")}
        keep = self.cfg.keep_checkpoints
        return checkpoints.save(Path(self.cfg.out), self.named_state(), meta, keep)

    def load(self) -> bool:
        """Continue from the newest whole checkpoint under `out`; False when there is none."""
        found = checkpoints.newest(Path(self.cfg.out))
        if found is None:
            return False
        meta = checkpoints.read_meta(found)
        check_resumed(self.cfg, TrainConfig.model_validate(meta["config"]), found.name)
        checkpoints.load(found, self.named_state())
        self._copy_tied()
        self.step_number = int(meta["step"])
        for param in self.parameters():
            self.optimizer.state[param]["step"].fill_(float(self.step_number))
        return True


def _quiet() -> None:
    """Two notes of torch that are known and harmless here.

    A stage's output may be a view (nothing writes to it in place), and gathering a whole
    gradient that two mesh dimensions cut takes two gathers.
    """
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def run_rank(cfg: TrainConfig) -> list[StepRecord]:
    """The whole run of one rank; rank 0 writes `log.jsonl`, each rank its actions and trace."""
    trainer = Trainer(cfg)
    out, rank = Path(cfg.out), dist.get_rank()
    if cfg.resume:
        trainer.load()
        if rank == 0:
            _cut_log(out / "log.jsonl", trainer.step_number)
    (out / "actions").mkdir(parents=True, exist_ok=True)
    (out / "actions" / f"rank{rank}.txt").write_text("\n".join(trainer.step_runner.actions))
    records: list[StepRecord] = []
    begun = trainer.step_number
    first = begun + min(2, max(0, cfg.steps - begun - 1))
    traced = range(first, min(cfg.steps, first + cfg.trace_steps))
    profiler: Any = None
    while trainer.step_number < cfg.steps:
        number = trainer.step_number
        if traced and number == traced.start:
            profiler = _profiler(cfg.device)
            profiler.__enter__()
        marked = profiler is not None and number in traced
        with _mark(f"ProfilerStep#{number}") if marked else contextlib.nullcontext():
            record = trainer.step()
        if profiler is not None and number == traced.stop - 1:
            profiler.__exit__(None, None, None)
            (out / "trace").mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(out / "trace" / f"rank{rank}.json"))
            profiler = None
        records.append(record)
        if rank == 0:
            with (out / "log.jsonl").open("a") as log:
                log.write(log_line(record, begun, cfg.plan.devices))
        every = cfg.checkpoint_every
        if (every and trainer.step_number % every == 0) or trainer.step_number == cfg.steps:
            trainer.save()
    return records


def _cut_log(path: Path, steps: int) -> None:
    """Keep the records of the first `steps` steps: those behind the checkpoint come again.

    A killed run may have written half a line, which is dropped as well.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(line)["step"] <= steps:
                kept.append(line + "\n")
    checkpoints.replace_text(path, "".join(kept))


def _mark(name: str) -> Any:  # noqa: ANN401
    return torch.profiler.record_function(name)


def _profiler(device: str) -> Any:  # noqa: ANN401
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    return profile(activities=kinds, record_shapes=True, acc_events=True)


def whole_gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Gradients of this rank's parameters, gathered whole, by plan-independent names.

    A collective over the ranks of a pipeline position: all of them must call it.
    """
    out: dict[str, Tensor] = {}
    for stage in trainer.stages:
        for name, param in stage.named_parameters():
            grad: Any = param.grad
            whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            key = "tok_embeddings.weight" if _tied_head(trainer, name) else name
            out[key] = whole.detach().clone()
    return out


def _tied_head(trainer: Trainer, name: str) -> bool:
    return trainer.cfg.model.tied and name == "output.weight"


def uses_fsdp(stage: Stage) -> bool:
    """Whether a stage is wrapped by fully_shard (an empty one is not)."""
    return isinstance(stage, FSDPModule)


__all__ = ["Place", "StepRecord", "Trainer", "run_rank", "whole_gradients"]
