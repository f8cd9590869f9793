"""The same examples in every run: a property that holds today fails only when the code changes."""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.load_profile("same")
