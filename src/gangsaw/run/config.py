"""What a training run is: documents only, no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Count, CountOrZero, Document, Frac, NonNegative, Positive
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.plan import Plan


class OptimizerConfig(Document):
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    lr: Positive = 3e-4
    betas: tuple[Frac, Frac] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.1
    warmup_steps: CountOrZero = 10
    min_frac: Frac = Field(0.1, description="last learning rate over the peak")
    clip_norm: NonNegative = Field(1.0, description="limit of the gradient norm; 0 is none")


class TrainConfig(Document):
    """One run: model, plan, data, optimizer, where it writes."""

    model: ModelSpec
    plan: Plan
    data: tuple[str, ...] = Field(description="text files, or token files .npy / .bin")
    out: str
    tokenizer: str = Field("bytes", description="bytes, or a Hugging Face tokenizer.json")
    token_bytes: Literal[2, 4] = Field(2, description="bytes a token in .bin files")
    seq_len: Count = 128
    steps: Count = 20
    precision: Literal["fp32", "bf16"] = "fp32"
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: CountOrZero = 0
    checkpoint_every: CountOrZero = Field(0, description="steps; 0 is only at the end")
    keep_checkpoints: Count = 2
    resume: bool = False
    trace_steps: CountOrZero = Field(1, description="steps under the profiler, behind the second")
    schedule_csv: str = Field("", description="action text; empty: from the plan's schedule")
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def global_batch(self) -> int:
        """Sequences a step."""
        return self.plan.dp * self.plan.mbs * self.plan.num_microbatches

    @property
    def tokens_per_step(self) -> int:
        """Tokens a step."""
        return self.global_batch * self.seq_len
