"""The documents that a user states, and those that the program answers with."""

from gangsaw.spec.cluster import AttentionCurve, ClusterSpec, DeviceSpec, HostSpec, TierSpec
from gangsaw.spec.job import Job
from gangsaw.spec.model import (
    AttentionSpec,
    LayerKind,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    RotaryScaling,
    RotarySpec,
    VisionSpec,
)
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe
from gangsaw.spec.stack import StackMemory, StackProfile, StackTime, blocking, without_overlap

__all__ = [
    "AttentionCurve",
    "AttentionSpec",
    "ClusterSpec",
    "DeviceSpec",
    "HostSpec",
    "Job",
    "LayerKind",
    "MlpSpec",
    "ModelSpec",
    "MoeSpec",
    "MtpSpec",
    "Plan",
    "Recipe",
    "RotaryScaling",
    "RotarySpec",
    "StackMemory",
    "StackProfile",
    "StackTime",
    "TierSpec",
    "VisionSpec",
    "blocking",
    "without_overlap",
]  # fmt: skip
