"""A plan as the launch files of other frameworks."""

from gangsaw.export.api import TARGETS, export_plan
from gangsaw.export.document import Export, ExportFile

__all__ = ["TARGETS", "Export", "ExportFile", "export_plan"]
