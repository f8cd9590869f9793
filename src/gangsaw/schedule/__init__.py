"""Schedules as programs of torch's pipelining grammar: generators, text, legality."""

from gangsaw.schedule.actions import Schedule
from gangsaw.schedule.generators import INFOS, canonical, generate
from gangsaw.schedule.text import csv_note, parse_csv, read_schedule, to_csv

__all__ = [
    "INFOS", "Schedule", "canonical", "csv_note", "generate", "parse_csv", "read_schedule",
    "to_csv",
]  # fmt: skip
