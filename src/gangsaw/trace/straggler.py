"""Reading tables of recorded operations (Parquet): one row an operation of a training job.

Columns: dp_rank, stage, step, optype, start_ts, duration (seconds within the step), seq_id;
others are not needed. It is the form of the traces published with arXiv:2505.05713.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gangsaw.errors import InputError
from gangsaw.simulate.replay import RecordedOps

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")


def read_recorded_ops(path: Path) -> RecordedOps:
    """The recorded operations of a Parquet file.

    Raises InputError when pyarrow is missing (it names the extra), when the file is not Parquet,
    or when a column is missing.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow: pip install 'gangsaw[parquet]'"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error})") from None
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}. Needed: {', '.join(COLUMNS)}")
    columns = {name: table.column(name).to_pylist() for name in COLUMNS}
    if any(value is None for values in columns.values() for value in values):
        raise InputError(f"{path}: a needed column has empty values")
    return RecordedOps(
        np.asarray(columns["dp_rank"], np.int64),
        np.asarray(columns["stage"], np.int64),
        np.asarray(columns["step"], np.int64),
        tuple(str(name) for name in columns["optype"]),
        np.asarray(columns["seq_id"], np.int64),
        np.asarray(columns["start_ts"], np.float64),
        np.asarray(columns["duration"], np.float64),
    )
