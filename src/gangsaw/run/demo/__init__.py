"""The demonstration: a small model, four processes, a text that ships with the package."""

from __future__ import annotations

from importlib.resources import files

from gangsaw.run.config import OptimizerConfig, TrainConfig
from gangsaw.spec.model import AttentionSpec, LayerKind, MlpSpec, ModelSpec
from gangsaw.spec.plan import Plan


def demo_model() -> ModelSpec:
    """0.7 million parameters: 4 layers of width 128, bytes as tokens."""
    attention = AttentionSpec(heads=4, kv_heads=2, head_dim=32, v_head_dim=32)
    kind = LayerKind(name="layer", hidden=128, attention=attention, mlp=MlpSpec(ffn=352))
    return ModelSpec(
        name="demo", hidden=128, vocab=256, kinds=(kind,), order=(0,) * 4, tied=True,
        final_norm_params=128, source="chosen for a demonstration on a few CPU cores",
    )  # fmt: skip


def demo_config(out: str, steps: int = 300) -> TrainConfig:
    """Two pipeline stages, two data-parallel ranks, on the bundled text."""
    plan = Plan(pp=2, dp=2, mbs=2, num_microbatches=4, schedule="1f1b")
    text = files("gangsaw.run.demo").joinpath("text.txt")
    return TrainConfig(
        model=demo_model(), plan=plan, data=(str(text),), out=out, seq_len=128, steps=steps,
        optimizer=OptimizerConfig(lr=4e-3, warmup_steps=20, weight_decay=0.05),
    )  # fmt: skip
