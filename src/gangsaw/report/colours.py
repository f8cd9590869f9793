"""One colour a cause, the same in text, chart, timeline and trace.

Hatching or position carries the same information wherever a colour does, so that grey print and
colour-blind readers lose nothing: `HATCHED` names what is drawn hatched, `OUTLINED` what is drawn
as an outline. Letters stand for the causes in plain text bars.
"""

from __future__ import annotations

CAUSE_COLOURS = {
    "compute": "#2f6fb5",
    "recompute": "#93bfe6",
    "bubble": "#b4bac3",
    "tp_comm": "#e8772e",
    "cp_comm": "#f2b632",
    "ep_comm": "#8a5a33",
    "pp_comm": "#3f9b4f",
    "dp_comm": "#8158b0",
    "optimizer": "#56657a",
    "host": "#8d929a",
    "offload": "#39b7d4",
    "checkpoint": "#8b8a2f",
    "failure": "#c62f39",
    "straggler": "#e58cb4",
    "unallocated": "#ffffff",
}
"""Colour of each cause of spec.result.CAUSES."""

KIND_COLOURS = {
    "forward": CAUSE_COLOURS["compute"],
    "backward": "#1b4379",
    "backward_input": "#1b4379",
    "backward_weight": "#17a398",
    "recompute": CAUSE_COLOURS["recompute"],
}
"""Colour of each kind of arithmetic on the timeline."""

CAUSE_LETTERS = {
    "compute": "C", "recompute": "R", "optimizer": "O", "bubble": "b", "tp_comm": "t",
    "cp_comm": "c", "ep_comm": "e", "pp_comm": "p", "dp_comm": "d", "host": "h",
    "offload": "o", "checkpoint": "k", "failure": "f", "straggler": "s", "unallocated": "u",
}  # fmt: skip
"""Letter of each cause in a plain text bar: capitals for work, small letters for idle time."""

HATCHED = frozenset({"bubble", "reserved"})
OUTLINED = frozenset({"unallocated", "outside"})

MEMORY_COLOURS = {
    "params": "#2c3a52",
    "grads": "#7a4a6b",
    "optimizer": CAUSE_COLOURS["optimizer"],
    "activations": "#d08a3c",
    "logits": "#8fb3a5",
    "buffers": "#c9c3b4",
    "reserved": "#b4bac3",
    "outside": "#ffffff",
}
"""Colour of each part of a memory bar."""

MEMORY_LETTERS = {
    "params": "P", "grads": "G", "optimizer": "O", "activations": "A", "logits": "L",
    "buffers": "B", "reserved": "r", "outside": "x",
}  # fmt: skip

MEMORY_COLOURS_DARK = {
    "params": "#8d9cc0",
    "grads": "#b07fa0",
    "optimizer": "#6c7c93",
    "activations": "#d08a3c",
    "logits": "#8fb3a5",
    "buffers": "#5e594c",
}
"""The same on a dark page, where the darkest parts would vanish."""
