"""Recipe: what is trained, in which precision, on how many tokens a step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Count, CountOrZero, Document, Positive

Precision = Literal["bf16", "fp16", "fp8", "fp32"]
Task = Literal["pretrain", "sft", "lora", "qlora"]


class Recipe(Document):
    """The training job apart from how it is cut."""

    seq_len: Count
    global_batch: Count = Field(description="sequences a step")
    precision: Precision = "bf16"
    task: Task = "pretrain"
    lora_rank: Count = 16
    lora_targets: Literal["attention", "all"] = "all"
    optimizer: Literal["adam"] = "adam"
    tokens: Positive | None = Field(None, description="tokens of the whole run")
    moe_imbalance: Positive = Field(1.0, description="load of the fullest expert over the mean")
    images_per_sequence: CountOrZero = Field(1, description="for models with a vision tower")

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.seq_len * self.global_batch
