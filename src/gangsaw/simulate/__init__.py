"""The event loop over a schedule, and the timeline that it makes."""

from gangsaw.simulate.record import simulate
from gangsaw.simulate.timeline import Timeline
from gangsaw.simulate.times import DataParallel, StageMemory, StageTimes, Transfers

__all__ = ["DataParallel", "StageMemory", "StageTimes", "Timeline", "Transfers", "simulate"]
