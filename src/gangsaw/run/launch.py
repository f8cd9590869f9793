"""Starting the ranks of a run: by torchrun's own agent, or as a rank that torchrun started."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from gangsaw.errors import InputError, RunFailedError
from gangsaw.run.carried import check_run as check_run
from gangsaw.run.carried import pointed
from gangsaw.run.config import TrainConfig
from gangsaw.run.ranks import start_ranks
from gangsaw.run.room import check_room, host_bytes
from gangsaw.run.schedule import auto_schedule
from gangsaw.run.trainer import run_rank
from gangsaw.schedule import to_csv

JOIN_LIMIT = timedelta(minutes=10)


def pick_device() -> str:
    """`cuda` where torch sees GPUs, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def memory_bytes(device: str) -> float:
    """Memory that a run finds: of the first GPU, or of this host."""
    return float(torch.cuda.mem_get_info(0)[1]) if device == "cuda" else host_bytes()


def started_by_torchrun() -> bool:
    """Whether this process is already a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def own_rank() -> int:
    """This process's rank under torchrun, else 0."""
    return int(os.environ.get("RANK", "0"))


def join(device: str) -> None:
    """Join the process group that the environment names.

    The keys of the store are kept apart by restart: a restarted rank must not meet those that
    its predecessor left behind.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        is_master=rank == 0 and not agent,
        timeout=JOIN_LIMIT,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        keep_memory()
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=PrefixStore(f"attempt{attempt}", store),
        rank=rank,
        world_size=world,
        timeout=JOIN_LIMIT,
    )


def keep_memory() -> None:
    """Let this process keep large blocks that it frees, where its allocator is glibc's.

    Else each tensor and gloo buffer of 32 MB or more is mapped anew and touched page by page:
    gathers of that size take 2 to 3 times as long, and step times scatter.
    """
    no_mappings, no_trimming = -4, -1  # M_MMAP_MAX, M_TRIM_THRESHOLD of mallopt(3)
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(no_mappings, 0)
        libc.mallopt(no_trimming, 2**31 - 1)


def rank_main(text: str) -> None:
    """One rank, from its configuration as JSON; a restarted rank continues."""
    cfg = TrainConfig.model_validate_json(text)
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        cfg = cfg.model_copy(update={"resume": True})
    join(cfg.device)
    try:
        run_rank(cfg)
    finally:
        dist.destroy_process_group()


def train(cfg: TrainConfig, max_restarts: int = 0) -> Path:
    """Run the plan and return the run's folder.

    Inside torchrun this process is one rank. Otherwise torchrun's agent starts all ranks on this
    host: forked from this process on the CPU, so that torch is loaded once, spawned on GPUs.
    Raises InputError before anything starts, RunFailedError when ranks fail.
    """
    out = Path(cfg.out)
    if started_by_torchrun():
        if int(os.environ["RANK"]) == 0:
            write_head(cfg)
        rank_main(cfg.model_dump_json())
        return out
    make_folder(cfg.out)
    with held(out):
        check_run(cfg)
        check_room(cfg, memory_bytes(cfg.device))
        if cfg.plan.schedule == "auto" and cfg.plan.pp > 1 and not cfg.schedule_csv:
            # Made once here, so that all ranks run the same order.
            text = to_csv(auto_schedule(cfg.plan, cfg.model.layers))
            cfg = cfg.model_copy(update={"schedule_csv": text})
        write_head(cfg)
        text = cfg.model_dump_json()
        try:
            start_ranks(cfg.plan.devices, rank_main, text, cfg.device, out, max_restarts)
        except RunFailedError as error:
            raise RunFailedError(f"{error}; {whence(out)}") from None
    return out


def whence(out: Path) -> str:
    """From where a run that ended early can go on."""
    found = pointed(out)
    if found is None:
        return f"{out} holds no checkpoint yet"
    return f"--resume goes on behind step {found[2]} of {out}"


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """The folder for this run alone; InputError while another one, or ranks it left, write there.

    The lock goes with the last process that has it, so that a killed run leaves none behind.
    """
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"--out {out}: another run writes there. Legal: wait for its end, or another folder"
            ) from None
        yield


def write_head(cfg: TrainConfig) -> None:
    """What the run is, on what it runs: `run.json` in its folder."""
    out = make_folder(cfg.out)
    head = {
        "config": cfg.model_dump(mode="json"),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "host": platform.node(),
        "machine": platform.machine(),
    }
    (out / "run.json").write_text(json.dumps(head, indent=1))


def make_folder(name: str) -> Path:
    """The folder of a run; InputError where it cannot be one that is written to."""
    out = Path(name)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {name} is a file. Legal: a folder, or a path that does not exist")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {name} cannot be made: {error.strerror}. Legal: a folder that can be written"
        ) from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"--out {name} cannot be written. Legal: a folder that can be written")
    return out
