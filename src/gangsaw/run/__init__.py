"""Running a plan on PyTorch's own distributed engine: the only room that imports torch.

Modules without torch: `config` (what a run is), `data` (tokens). All others import torch, so
they are imported inside the functions that need them.
"""
