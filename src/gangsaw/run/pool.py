"""Rank processes forked from one warm parent: torch is imported once, not once a rank.

Starting torch costs seconds a process. `Pool` keeps rank processes that wait for jobs; each job
gets a fresh process group of the first n of them. For CPU (gloo) on one host; ranks on GPUs and
on several hosts are started by torchrun.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from gangsaw.errors import GangsawError, RunFailedError

Job = Callable[..., Any]


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("default")
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        if job is None:
            return
        fn, args, rank, world, store, limit_s = job
        try:
            file = dist.FileStore(store, world)  # type: ignore[attr-defined]
            dist.init_process_group(
                "gloo", store=file, rank=rank, world_size=world,
                timeout=timedelta(seconds=limit_s),
            )  # fmt: skip
            try:
                answer: Any = ("ok", fn(*args))
            finally:
                dist.destroy_process_group()
        except GangsawError as error:
            answer = ("input", error)
        except Exception:
            answer = ("failed", traceback.format_exc())
        pipe.send(answer)


class Pool:
    """`size` rank processes; use as a context manager."""

    def __init__(self, size: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        self._context = mp.get_context("fork")
        self._folder = tempfile.TemporaryDirectory(prefix="gangsaw-pool-")
        self._jobs = 0
        self._workers: list[tuple[Any, Connection]] = []
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._workers.append((process, mine))

    def run(self, world: int, fn: Job, *args: Any, limit_s: float = 120.0) -> list[Any]:  # noqa: ANN401
        """`fn(*args)` on ranks 0..world-1; their answers in order.

        `fn` and its answer must pickle. RunFailedError with the first rank's traceback when one
        fails or takes longer than `limit_s`; then all ranks are replaced.
        """
        while len(self._workers) < world:
            self._start()
        self._jobs += 1
        store = str(Path(self._folder.name) / f"store{self._jobs}")
        used = self._workers[:world]
        for rank, (_, pipe) in enumerate(used):
            pipe.send((fn, args, rank, world, store, limit_s))
        answers: dict[int, Any] = {}
        by_pipe = {pipe: rank for rank, (_, pipe) in enumerate(used)}
        while len(answers) < world:
            ready = wait([p for p, r in by_pipe.items() if r not in answers], timeout=limit_s)
            if not ready:
                self._fail(f"no answer within {limit_s:.0f} s")
            for pipe in cast("list[Connection]", ready):
                rank = by_pipe[pipe]
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    self._fail(f"rank {rank} died")
                if kind == "failed":
                    self._fail(f"rank {rank} failed:\n{value}")
                answers[rank] = (kind, value)
        for kind, value in answers.values():
            if kind == "input":
                raise value
        return [answers[r][1] for r in range(world)]

    def _fail(self, why: str) -> None:
        self._stop(kill=True)
        raise RunFailedError(why)

    def _stop(self, kill: bool) -> None:
        for process, pipe in self._workers:
            if kill:
                process.kill()
            else:
                pipe.send(None)
            process.join(timeout=10)
            pipe.close()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(kill=error is not None)
        self._folder.cleanup()
