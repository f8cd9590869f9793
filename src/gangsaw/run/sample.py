"""Text from a trained checkpoint, in one process, whatever plan trained it."""

from __future__ import annotations

from pathlib import Path

import torch

from gangsaw.errors import InputError, RunFailedError
from gangsaw.run import checkpoints
from gangsaw.run.config import TrainConfig
from gangsaw.run.model import BuildOptions, Stage, build_stage, rotary_of


def load_model(out: Path) -> tuple[Stage, TrainConfig]:
    """The whole model of the newest whole checkpoint of a run, and the run's configuration."""
    found = checkpoints.newest(out)
    if found is None:
        raise RunFailedError(f"{out} holds no finished checkpoint")
    cfg = TrainConfig.model_validate(checkpoints.read_meta(found)["config"])
    opt = BuildOptions(seq_len=cfg.seq_len, seed=cfg.seed, rotary=rotary_of(cfg.model))
    model = build_stage(cfg.model, range(cfg.model.layers), (True, True), opt)
    state = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    checkpoints.load(found, state)
    return model.eval(), cfg


def sample_text(out: Path, prompt: str, count: int, temperature: float = 0.7, seed: int = 0) -> str:
    """`prompt` continued by `count` bytes. InputError unless the run's tokens are bytes."""
    model, cfg = load_model(out)
    if cfg.tokenizer != "bytes":
        raise InputError(f"tokenizer={cfg.tokenizer!r}: samples are written for `bytes` only")
    gen = torch.Generator().manual_seed(seed)
    tokens = list(prompt.encode()) or [10]
    with torch.no_grad():
        for _ in range(count):
            window = torch.tensor([tokens[-cfg.seq_len :]])
            logits = model(window)[0, -1].float()
            chance = torch.softmax(logits / temperature, dim=-1)
            tokens.append(int(torch.multinomial(chance, 1, generator=gen)))
    return bytes(tokens).decode(errors="replace")
