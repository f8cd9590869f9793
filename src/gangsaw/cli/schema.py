"""`gangsaw schema`: the JSON Schema of what a verb prints with --json."""

from __future__ import annotations

import importlib
from typing import Any

from gangsaw.cli import output as screen
from gangsaw.cli import values
from gangsaw.cli.flags import OutputFlags, VerbArg, takes
from gangsaw.errors import InputError

DOCUMENTS = {
    "plan": "gangsaw.spec.result:PlanListResult",
    "estimate": "gangsaw.spec.result:EstimateResult",
    "explain": "gangsaw.search.explain:ExplainResult",
    "timeline": "gangsaw.simulate.document:TimelineColumns",
    "bill": "gangsaw.search.site:FullBill",
    "threshold": "gangsaw.search.answer:ThresholdAnswer",
    "scorecard": "gangsaw.search.scorecard:Scorecard",
    "tail": "gangsaw.search.tail_answer:TailAnswer",
    "check": "gangsaw.doctor.check:CheckResult",
    "oom": "gangsaw.doctor.oom:OomResult",
    "export": "gangsaw.export.document:Export",
    "import": "gangsaw.read.launch.document:LaunchFile",
    "model": "gangsaw.cost.summary:ModelSummary",
    "measure": "gangsaw.run.documents:MeasureResult",
    "train": "gangsaw.run.documents:TrainSummary",
    "reconcile": "gangsaw.trace.reconcile:ReconcileResult",
    "calibrate": "gangsaw.fit.calibrate:CalibrateResult",
    "validate": "gangsaw.fit.outcome:ValidateResult",
}
"""The document of each verb, as module and class."""


@takes(VerbArg, OutputFlags)
def command(args: VerbArg, output: OutputFlags) -> None:
    """Print the JSON Schema of a verb's output."""
    del output  # the schema is JSON with or without the flag
    screen.write_json(schema_of(args.verb))


def schema_of(verb: str) -> dict[str, Any]:
    """The JSON Schema of what `verb --json` prints."""
    if verb.strip().lower() == "schema":
        raise InputError(f"schema has no schema of its own. Legal: {', '.join(DOCUMENTS)}")
    name = values.choice("verb", verb, tuple(DOCUMENTS))
    module, _, title = DOCUMENTS[name].partition(":")
    document = getattr(importlib.import_module(module), title)
    schema: dict[str, Any] = document.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
