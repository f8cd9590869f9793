"""One colour a cause, the same in text, chart, timeline and trace.

Hatching or position carries the same information wherever a colour does, so that grey print and
colour-blind readers lose nothing: `HATCHED` names what is drawn hatched, `OUTLINED` what is drawn
as an outline. Letters stand for the causes in plain text bars.
"""

from __future__ import annotations

CAUSE_COLOURS = {
    "compute": "#2f6fb5",
    "recompute": "#a7cef1",
    "bubble": "#b4bac3",
    "tp_comm": "#ed6c00",
    "cp_comm": "#f4d139",
    "ep_comm": "#7f4816",
    "pp_comm": "#3e9e5a",
    "dp_comm": "#7835cd",
    "optimizer": "#3a4561",
    "host": "#72757e",
    "offload": "#15b4f1",
    "checkpoint": "#aebb4d",
    "failure": "#eb2241",
    "straggler": "#eb9bb3",
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
    "params": "#2a7f86",
    "grads": "#b48ead",
    "optimizer": CAUSE_COLOURS["optimizer"],
    "activations": "#d08a3c",
    "logits": "#e9d8a6",
    "buffers": "#8a8577",
    "reserved": "#b4bac3",
    "outside": "#ffffff",
}
"""Colour of each part of a memory bar."""

MEMORY_LETTERS = {
    "params": "P", "grads": "G", "optimizer": "O", "activations": "A", "logits": "L",
    "buffers": "B", "reserved": "r", "outside": "x",
}  # fmt: skip
