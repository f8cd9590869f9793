"""What the event loop needs to know of stages, transfers and memory, in SI units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gangsaw.cost.types import Array
from gangsaw.errors import InputError
from gangsaw.schedule.actions import I32


def _array(values: Sequence[float] | Array | float, stages: int, name: str) -> Array:
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        array = np.full(stages, float(array))
    if array.shape != (stages,):
        raise InputError(f"{name}: {array.size} values for {stages} stages; one a stage")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"{name}: every value must be finite and not negative")
    return array


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Seconds of one microbatch on each stage: forward, input gradient, weight gradient.

    `whole_s` is the backward as one action; None is their sum. `overlap_frac` is the share of
    the shorter action hidden behind the longer in an overlapped pair (0: one after the other).
    Arrays [stages] in stage order.
    """

    forward_s: Array
    backward_s: Array
    weight_s: Array
    whole_s: Array
    overlap_frac: float = 0.0

    @classmethod
    def of(
        cls,
        stages: int,
        forward_s: Sequence[float] | Array | float,
        backward_s: Sequence[float] | Array | float,
        weight_s: Sequence[float] | Array | float,
        overlap_frac: float = 0.0,
    ) -> StageTimes:
        """From one value for all stages, or one a stage. Raises InputError on wrong values."""
        f = _array(forward_s, stages, "forward_s")
        b = _array(backward_s, stages, "backward_s")
        w = _array(weight_s, stages, "weight_s")
        if not 0.0 <= overlap_frac <= 1.0:
            raise InputError(f"overlap_frac={overlap_frac}: between 0 and 1")
        return cls(f, b, w, b + w, overlap_frac)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_s)


@dataclass(frozen=True, eq=False)
class Transfers:
    """How activations and their gradients move from stage s to s + 1 and back.

    A transfer occupies its link for bytes / bytes_per_s and arrives latency_s later. Transfers
    of one link go one after the other in the order in which they were issued, equal times by
    rank. `blocking` keeps the sender's compute stream waiting until its link is free again.
    `links` [ranks, ranks] numbers the link from rank to rank; None gives each pair its own.
    Arrays [stages]; the entry of a last stage is not used.
    """

    bytes_each: Array
    bytes_per_s: Array
    latency_s: Array
    blocking: bool = False
    links: I32 | None = None

    @classmethod
    def of(
        cls,
        stages: int,
        bytes_each: Sequence[float] | Array | float,
        bytes_per_s: Sequence[float] | Array | float,
        latency_s: Sequence[float] | Array | float = 0.0,
        blocking: bool = False,
        links: I32 | None = None,
    ) -> Transfers:
        """From one value for all boundaries, or one a stage."""
        speed = _array(bytes_per_s, stages, "bytes_per_s")
        if np.any(speed <= 0):
            raise InputError("bytes_per_s: every value must be positive")
        size = _array(bytes_each, stages, "bytes_each")
        return cls(size, speed, _array(latency_s, stages, "latency_s"), blocking, links)


@dataclass(frozen=True, eq=False)
class DataParallel:
    """Seconds to gather a stage's weights and to reduce its gradients; arrays [stages].

    They run on a stream of their own on each rank, where the schedule has UNSHARD and
    REDUCE_GRAD; a schedule without them gets them as torch's pipelining would place them, at most
    `active_stages` gathered stages a rank at once.
    """

    gather_s: Array
    reduce_s: Array
    active_stages: int = 3

    @classmethod
    def of(
        cls,
        stages: int,
        gather_s: Sequence[float] | Array | float = 0.0,
        reduce_s: Sequence[float] | Array | float = 0.0,
    ) -> DataParallel:
        """From one value for all stages, or one a stage."""
        return cls(_array(gather_s, stages, "gather_s"), _array(reduce_s, stages, "reduce_s"))


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes that actions hold; arrays [stages], `static_bytes` [ranks].

    Activations of a microbatch are held from the start of its forward; the input gradient frees
    `input_release_frac` of them, the weight gradient (or the whole backward) the rest, at its end.
    `working_bytes` exist while an action of the stage runs. Gathered weights are held from UNSHARD
    to RESHARD.
    """

    static_bytes: Array
    activation_bytes: Array
    working_bytes: Array
    gathered_bytes: Array
    input_release_frac: float = 0.0

    @classmethod
    def of(
        cls,
        stages: int,
        ranks: int,
        activation_bytes: Sequence[float] | Array | float,
        static_bytes: Sequence[float] | Array | float = 0.0,
        working_bytes: Sequence[float] | Array | float = 0.0,
        input_release_frac: float = 0.0,
    ) -> StageMemory:
        """From one value for all stages, or one a stage; nothing gathered."""
        if not 0.0 <= input_release_frac <= 1.0:
            raise InputError(f"input_release_frac={input_release_frac}: between 0 and 1")
        return cls(
            _array(static_bytes, ranks, "static_bytes"),
            _array(activation_bytes, stages, "activation_bytes"),
            _array(working_bytes, stages, "working_bytes"),
            np.zeros(stages),
            input_release_frac,
        )
