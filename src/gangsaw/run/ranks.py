"""Local ranks under torchrun's agent: started, and ended with one line whatever ends them.

What a failing rank said stands in a file of the run's folder; the terminal gets one line. Ranks
do not outlive the process that started them, also where that one was killed without a signal that
it could handle. GANGSAW_DEBUG=1 lets torch print what it would.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gangsaw.errors import RunFailedError

WATCH_S = 0.3
"""Seconds between two looks of a rank at its parent."""
PEER_S = 1.0
"""A rank that lost a peer fails this much later, so that the agent sees the lost one first."""
_LOST = ("reset by peer", "closed by peer", "Broken pipe", "Connection refused", "NCCL")
_LOGGERS = (
    "torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn", "torch.distributed.pipelining.schedules",
)  # fmt: skip
"""Who reports what a failing rank said and how the others were ended."""


def error_file(folder: Path, rank: int) -> Path:
    """Where the traceback of a rank of a run stands."""
    return folder / f"error-rank{rank}.txt"


def start_ranks(
    count: int,
    main: Callable[[str], None],
    text: str,
    device: str,
    folder: Path,
    max_restarts: int = 0,
) -> None:
    """`main(text)` on `count` local ranks under torchrun's agent.

    Raises RunFailedError, in one line, when a rank fails or a signal ends the run;
    KeyboardInterrupt where that signal is the user's.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if device == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
    _forget(folder, count)
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"gangsaw-{os.getpid()}",
        max_restarts=max_restarts,
        monitor_interval=0.2,
        start_method="fork" if device == "cpu" else "spawn",
    )
    try:
        with _quiet():
            elastic_launch(launch, _rank)(main, text, str(folder), os.getpid())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RunFailedError(_first_line(rank, failure.exitcode, failure.message, folder)) from None
    except SignalException as error:
        _forget(folder, count)  # what ranks said when the others were ended explains nothing
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        name = signal.Signals(error.sigval).name
        raise RunFailedError(f"stopped by {name}; all {count} ranks have ended") from None


def _forget(folder: Path, count: int) -> None:
    for rank in range(count):
        error_file(folder, rank).unlink(missing_ok=True)


def _first_line(rank: int, code: int, message: object, folder: Path) -> str:
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    text = message if isinstance(message, str) else str(message)
    if isinstance(message, dict):
        text = str(message.get("message", message))
    where = error_file(folder, rank)
    said = f" (all of it: {where})" if where.exists() else ""
    return f"rank {rank} failed: {text.strip().splitlines()[-1]}{said}"


def _debug() -> bool:
    return bool(os.environ.get("GANGSAW_DEBUG"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own reports of failing ranks off the terminal; forked ranks inherit it."""
    loggers = [] if _debug() else [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _rank(main: Callable[[str], None], text: str, folder: str, parent: int) -> None:
    """One rank: goes with its parent, and leaves its traceback in a file."""
    threading.Thread(target=_go_with, args=(parent,), daemon=True).start()
    with _quiet():
        try:
            main(text)
        except SignalException:
            raise  # the agent ends this rank: nothing failed here
        except Exception as error:
            rank = int(os.environ.get("RANK", "0"))
            with contextlib.suppress(OSError):
                error_file(Path(folder), rank).write_text(traceback.format_exc())
            # Where the parent is gone, the thread ends this process before it says anything.
            lost = any(word in str(error) for word in _LOST)
            time.sleep(PEER_S if lost else 2 * WATCH_S)
            raise


def _go_with(parent: int) -> None:
    """End this process as soon as its parent is gone: nobody would wait for it or stop it."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)
