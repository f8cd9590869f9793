"""gangsaw: decide how to cut the training of a large model across accelerators."""

__version__ = "0.1.0"
