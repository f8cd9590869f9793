"""What a run and a measurement say to other programs; no torch."""

from __future__ import annotations

from pydantic import Field

from gangsaw.spec.base import Count, CountOrZero, Document, Frac, NonNegative, Positive


class TrainSummary(Document):
    """What a finished run did."""

    out: str = Field(description="folder of the run")
    ranks: Count
    steps: CountOrZero
    first_loss: float | None = Field(description="nats a token; null where it is not finite")
    last_loss: float | None = Field(description="nats a token; null where it is not finite")
    timed_from: CountOrZero = Field(
        0, description="step behind which the last start of the run began; times are its own"
    )
    step_time_s: Positive = Field(description="median, without the first two steps")
    step_time_lo_s: Positive
    step_time_hi_s: Positive
    tokens_per_s: Positive
    torch: str
    sample: str | None = Field(None, description="text that the trained model wrote")


class MeasuredMachine(Document):
    """Where it was measured."""

    host: str
    name: str
    torch: str
    python: str
    date: str
    cores: int | None


class MeasuredLayer(Document):
    """One layer, forward or with its backward, at one TP size."""

    tp: Count
    dtype: str
    backward: bool
    seq: Count
    mbs: Count
    low_s: Positive
    median_s: Positive
    spread_frac: NonNegative = Field(description="quartile range of repetitions over median")
    scatter_frac: NonNegative = Field(0.0, description="difference between rounds over mean")
    kept_bytes: NonNegative | None = Field(description="of activations, where they were seen")


class Noise(Document):
    """How quiet the machine was: what measuring again changes, apart from how curves fit."""

    noisy_frac: Frac = Field(description="share of probes whose rounds differ by over a quarter")
    scatter_frac: NonNegative = Field(0.0, description="median difference between rounds")
    busy_frac: Frac = Field(0.0, description="share of a core that other work took")
    too_noisy: bool
    noisiest: tuple[str, ...]


class MeasureResult(Document):
    """What a measurement found, beside the cluster file that it wrote."""

    fits: dict[str, dict[str, float | int]] = Field(
        description="fitted values of each curve in SI units, with residual (log) and points"
    )
    layers: tuple[MeasuredLayer, ...]
    checkpoint: dict[str, Positive] = Field(description="write_bytes_per_s, read_bytes_per_s")
    burst_flops_per_s: Positive
    sustained_flops_per_s: Positive
    machine: MeasuredMachine
    layer_factor: float | None = Field(
        description="predicted over measured seconds of a layer, from kernels timed alone"
    )
    layer_left: float | None = Field(
        description="the same once kernel shares were scaled to the layer; 1 unless they stopped"
    )
    call_s: float = Field(
        0.0, description="seconds added to the latency by the layers measured under TP"
    )
    noise: Noise
    cluster: str = Field(description="the cluster file")
