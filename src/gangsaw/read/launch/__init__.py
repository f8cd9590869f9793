"""Launch files of other frameworks, read without executing anything."""

from gangsaw.read.launch.document import Assumed, Framework, LaunchFile, Stated, Value
from gangsaw.read.launch.reader import read_launch, read_launch_text

__all__ = [
    "Assumed",
    "Framework",
    "LaunchFile",
    "Stated",
    "Value",
    "read_launch",
    "read_launch_text",
]
