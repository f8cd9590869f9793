"""Rank processes forked from one warm process: torch is imported once, not once a rank.

Starting torch costs seconds a process. `Pool` keeps one process that has loaded everything and
computes nothing; for each job it forks the ranks, which live for that job only, so nothing that
torch remembers of one process group (names, cached layouts) is met by the next. For CPU (gloo)
on one host; ranks on GPUs and on several hosts are started by torchrun.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gangsaw.errors import GangsawError, RunFailedError

_FORK = mp.get_context("fork")


class _Task(NamedTuple):
    """What the warm process is asked to run."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    world: int
    store: str
    limit_s: float


Answer = tuple[str, bytes, float]
"""ok, input or failed; the pickled value; when it was given, on a clock that all ranks share."""


def _rank(task: _Task, rank: int, pipe: Connection) -> None:
    """One rank of one job: join, run, answer.

    The answer is sent before the group is left: a rank that fails by the loss of this one then
    always answers later than it.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("default")
    try:
        dist.init_process_group(
            "gloo",
            store=FileStore(task.store, task.world),
            rank=rank,
            world_size=task.world,
            timeout=timedelta(seconds=task.limit_s),
        )
        answer: tuple[str, Any] = ("ok", task.fn(*task.args))
    except GangsawError as error:
        answer = ("input", error)
    except Exception:
        answer = ("failed", traceback.format_exc())
    # Plain pickle: multiprocessing's own would pass tensors by a file that dies with this process.
    pipe.send((answer[0], pickle.dumps(answer[1]), time.monotonic()))
    pipe.close()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def _failure(why: str) -> list[Answer]:
    return [("failed", pickle.dumps(why), time.monotonic())]


def _collect(task: _Task, pipes: list[Connection]) -> list[Answer]:
    """The answers of all ranks, or the first failure alone: others follow from it."""
    answers: dict[int, Answer] = {}
    end = time.monotonic() + task.limit_s
    while len(answers) < len(pipes):
        left = {p: r for r, p in enumerate(pipes) if r not in answers}
        ready = cast("list[Connection]", wait(list(left), max(0.0, end - time.monotonic())))
        if not ready:
            return _failure(f"no answer within {task.limit_s:.0f} s")
        failed: list[tuple[float, int, bytes]] = []
        for pipe in ready:
            try:
                answers[left[pipe]] = pipe.recv()
            except EOFError:
                return _failure(f"rank {left[pipe]} died")
            kind, value, when = answers[left[pipe]]
            if kind == "failed":
                failed.append((when, left[pipe], value))
        if failed:
            _, rank, value = min(failed)
            return _failure(f"rank {rank} failed:\n{pickle.loads(value)}")
    return [answers[r] for r in range(len(pipes))]


def _run_task(task: _Task) -> list[Answer]:
    ranks, pipes = [], []
    for rank in range(task.world):
        mine, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_rank, args=(task, rank, theirs), daemon=True)
        process.start()
        theirs.close()
        ranks.append(process)
        pipes.append(mine)
    answers = _collect(task, pipes)
    for process in ranks:
        if len(answers) < task.world or answers[0][0] == "failed":
            process.kill()
        process.join()
    for pipe in pipes:
        pipe.close()
    return answers


def _warm(pipe: Connection) -> None:
    """The warm process: forks the ranks of each job; ends when its parent does."""
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        if task is None:
            return
        pipe.send(_run_task(task))


class Pool:
    """The warm process; use as a context manager. Make it before any autograd ran here."""

    def __init__(self) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        torch.set_num_threads(1)
        self._folder = tempfile.TemporaryDirectory(prefix="gangsaw-pool-")
        self._jobs = 0
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_warm, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(
        self,
        world: int,
        fn: Callable[..., Any],
        *args: Any,  # noqa: ANN401
        limit_s: float = 600.0,
    ) -> list[Any]:
        """`fn(*args)` on ranks 0..world-1 of a process group; their answers in order.

        `fn` and its answers must pickle. Raises what a rank raised when it is one of gangsaw's
        own errors, else RunFailedError with the first failing rank's traceback.
        """
        self._jobs += 1
        store = str(Path(self._folder.name) / f"store{self._jobs}")
        self._pipe.send(_Task(fn, args, world, store, limit_s))
        try:
            answers = [(kind, pickle.loads(value)) for kind, value, _ in self._pipe.recv()]
        except EOFError:
            raise RunFailedError("the warm process died") from None
        for kind, value in answers:
            if kind == "failed":
                raise RunFailedError(value)
            if kind == "input":
                raise value
        return [value for _, value in answers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(None)
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
        self._pipe.close()
        self._folder.cleanup()
