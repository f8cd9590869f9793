"""Out-of-memory messages of PyTorch's allocators (CUDA, HIP, NPU, XPU, CPU), XLA and Linux."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from gangsaw.errors import InputError
from gangsaw.spec.base import Document
from gangsaw.units import GIB, KIB, MIB, TIB

MAX_CHARS = 200_000
_UNITS = {
    "": 1.0, "b": 1.0, "byte": 1.0, "bytes": 1.0, "kib": KIB, "kb": KIB, "mib": MIB, "mb": MIB,
    "gib": GIB, "gb": GIB, "tib": TIB, "tb": TIB, "k": KIB, "m": MIB, "g": GIB,
}  # fmt: skip
_SIZE = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,6})?)\s{0,3}(bytes|byte|[KMGT]i?B|B|[KMG])?"
_FIELDS = {
    "requested": (
        rf"[Tt]ried to allocate\s+{_SIZE}", rf"trying to allocate\s+{_SIZE}",
        rf"failed to allocate\s+{_SIZE}", rf"\bRequested\s{{0,40}}:\s{{0,9}}{_SIZE}",
        rf"allocate\s+{_SIZE} ",
    ),
    "total": (
        rf"Device limit\s{{0,40}}:\s{{0,9}}{_SIZE}", rf"total capacity of\s+{_SIZE}",
        rf"{_SIZE}\s+total capacity",
    ),
    "free": (
        rf"Free \(according to CUDA\):\s{{0,9}}{_SIZE}", rf"of which\s+{_SIZE}\s+is free",
        rf"{_SIZE}\s+free",
    ),
    "allocated": (
        rf"[Oo]f the allocated memory\s+{_SIZE}\s+is allocated", rf"{_SIZE}\s+already allocated",
        rf"{_SIZE}\s+is allocated by PyTorch",
        rf"Currently allocated\s{{0,40}}:\s{{0,9}}{_SIZE}", rf"MPS allocated:\s{{0,9}}{_SIZE}",
    ),
    "unallocated": (rf"{_SIZE}\s+is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE}\s+reserved in total", rf"{_SIZE}\s+cached"),
    "in_use": (rf"this process has\s+{_SIZE}\s+memory in use",),
}  # fmt: skip
_PATTERNS = {name: tuple(re.compile(p) for p in texts) for name, texts in _FIELDS.items()}
_HOST = re.compile(
    r"DefaultCPUAllocator|alloc_cpu|oom[-_ ]kill|Out of memory: Kill|Cannot allocate memory|"
    r"MemoryError|pinned memory|cudaHostAlloc",
    re.IGNORECASE,
)


_DEVICE = re.compile(
    r"(CUDA|HIP|NPU|XPU|MPS)( runtime)? error: out of memory|(cuda|hip)ErrorOutOfMemory|"
    r"CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED"
)
_OUTSIDE = re.compile(r"Cuda failure 2|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
                      r"(Cuda|HIP) failure[^\n]{0,20}out of memory")  # fmt: skip


class OomMessage(Document):
    """What a message says. Sizes in bytes; `step_bytes` is half its last printed digit."""

    kind: Literal["device", "host"]
    requested_bytes: float | None
    step_bytes: float = Field(0.0, description="what rounding in the message may hide")
    total_bytes: float | None = None
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    in_use_bytes: float | None = None
    outside: bool = Field(False, description="a library beside PyTorch's allocator asked for it")

    @property
    def unused_bytes(self) -> float | None:
        """Reserved by the allocator and not in use: what fragmentation may have lost."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0.0, self.reserved_bytes - self.allocated_bytes)


def parse_message(text: str) -> OomMessage:
    """The message found in `text` (a log may stand around it; the last message counts).

    Raises InputError when nothing in it is an out-of-memory message.
    """
    if len(text) > MAX_CHARS:
        text = _around(text)
    found: dict[str, tuple[float, float]] = {}
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            matches = list(pattern.finditer(text))
            if matches:
                found[name] = _size(matches[-1].group(1), matches[-1].group(2))
                break
    outside = "requested" not in found and bool(_OUTSIDE.search(text))
    host = bool(_HOST.search(text)) and "total" not in found and not outside
    if "requested" not in found and not host and not outside and not _DEVICE.search(text):
        raise InputError(
            "no out-of-memory message found; expected one like 'CUDA out of memory. Tried to"
            " allocate 2.00 GiB' of PyTorch (CUDA, HIP, NPU, CPU) or 'oom_kill'"
        )
    requested = found.get("requested")
    reserved = found.get("reserved", (None, 0.0))[0]
    allocated = found.get("allocated", (None, 0.0))[0]
    extra = found.get("unallocated", (None, 0.0))[0]
    if reserved is None and allocated is not None and extra is not None:
        reserved = allocated + extra
    return OomMessage(
        kind="host" if host else "device",
        requested_bytes=requested[0] if requested else None,
        step_bytes=requested[1] if requested else 0.0,
        total_bytes=found.get("total", (None, 0.0))[0],
        free_bytes=found.get("free", (None, 0.0))[0], allocated_bytes=allocated,
        outside=outside, reserved_bytes=reserved, in_use_bytes=found.get("in_use", (None, 0.0))[0],
    )  # fmt: skip


def _around(text: str) -> str:
    """The part of a long log around its last message."""
    at = max(text.rfind("allocate"), text.rfind("oom"), text.rfind("out of memory"), 0)
    return text[max(0, at - MAX_CHARS // 2) : at + MAX_CHARS // 2]


def _size(number: str, unit: str | None) -> tuple[float, float]:
    """Bytes and half of the last printed digit."""
    scale = _UNITS[(unit or "").lower()]
    digits = number.replace(",", "")
    places = len(digits.partition(".")[2])
    step = 0.0 if scale == 1.0 else 0.5 * scale * 10.0**-places
    return float(digits) * scale, step
