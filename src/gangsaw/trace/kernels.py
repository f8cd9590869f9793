"""What a GPU kernel is, from its name: matrix product, attention, collective, and so on.

Names are those of cuBLAS, cuDNN, CUTLASS, FlashAttention, Triton, NCCL/RCCL and PyTorch as they
stand in profiler traces; the first pattern that matches decides, and what none matches is `other`.
"""

from __future__ import annotations

import re
from functools import lru_cache

KINDS = (
    "other", "gemm", "attention", "convolution", "norm", "softmax", "embedding", "optimizer",
    "elementwise", "reduction", "copy", "collective", "p2p",
)  # fmt: skip
OTHER = 0
COLLECTIVE = KINDS.index("collective")
P2P = KINDS.index("p2p")
COPY = KINDS.index("copy")
OPTIMIZER = KINDS.index("optimizer")

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("p2p", r"nccl.*sendrecv|rccl.*sendrecv"),
    ("collective", r"nccl|rccl|oneshot_all_?reduce|two_?shot|multimem_all|deep_?ep|symm_mem"),
    ("optimizer", r"multi_tensor_apply|adam|lamb|adagrad|sgd_|foreach"),
    ("attention", r"flash|fmha|attention|mha_|_attn_"),
    (
        "convolution",
        r"conv|implicit_gemm|winograd|dgrad|wgrad|fprop|scudnn|nchwtonhwc|nhwctonchw",
    ),
    ("gemm", r"gemm|cutlass|cublas|nvjet|matmul|wgmma|gemv|splitk|cijk_|s16816|s884|ampere_s"),
    ("norm", r"layer_?norm|rms_?norm|batch_?norm|group_?norm|bn_(fw|bw)|rmsnorm"),
    ("softmax", r"softmax|nll_loss|cross_?entropy"),
    ("embedding", r"embedding|index_select|permute_(2d|pooled|indices)|gather|scatter|index_put"),
    ("reduction", r"reduce|sort|scan|pool_"),
    (
        "elementwise",
        r"elementwise|vectorized|catarray|copy|fill|triton_(poi|per|red)|unrolled|dropout|cast|quantize",
    ),
)
_COMPILED = tuple((KINDS.index(kind), re.compile(rule)) for kind, rule in _PATTERNS)

_OPERATIONS: tuple[tuple[str, str], ...] = (
    ("send_recv", r"sendrecv|send|recv"),
    ("all_to_all", r"alltoall|all_to_all"),
    ("reduce_scatter", r"reducescatter|reduce_scatter"),
    ("all_gather", r"allgather|all_gather"),
    ("all_reduce", r"allreduce|all_reduce"),
    ("broadcast", r"broadcast"),
    ("reduce", r"reduce"),
)


@lru_cache(maxsize=100_000)
def kernel_kind(name: str) -> int:
    """Number in KINDS of a kernel by name."""
    lowered = name.lower()
    for kind, rule in _COMPILED:
        if rule.search(lowered):
            return kind
    return OTHER


@lru_cache(maxsize=10_000)
def operation(name: str) -> str:
    """The collective that a kernel or annotation name says: `all_reduce`, ...; "" unknown."""
    lowered = name.lower()
    for text, rule in _OPERATIONS:
        if re.search(rule, lowered):
            return text
    return ""
