"""Checkpoints that are whole or not there: torch.distributed.checkpoint plus a commit.

A save goes to a new hidden directory; then every file is hashed into a manifest, the directory
gets its final name, and a pointer file is replaced atomically. torch's format alone notices
neither a flipped byte nor old metadata beside newer shards; the manifest does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from gangsaw.errors import RunFailedError
from gangsaw.run.carried import FOLDER, MANIFEST, POINTER


def _sync(path: Path) -> None:
    """Flush a file or a directory entry to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _barrier() -> None:
    if _running():
        dist.barrier()


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old or the new content, never a part."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    _sync(part)
    part.replace(path)
    _sync(path.parent)


def save(out: Path, state: dict[str, Tensor], meta: dict[str, Any], keep: int = 2) -> Path:
    """Save `state` and the JSON document `meta` as the newest checkpoint under `out`.

    Collective: every rank calls it with its own tensors. The oldest beyond `keep` are removed
    after the pointer has moved. Returns the directory.
    """
    folder = out / FOLDER
    final = folder / f"step-{int(meta['step']):08d}"
    part = folder / f".part-{final.name}"
    lead = not _running() or dist.get_rank() == 0
    if lead:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    _barrier()
    save_shards(dict(state), checkpoint_id=part, no_dist=not _running())
    _barrier()
    if lead:
        files = sorted(p for p in part.iterdir() if p.is_file())
        table = {}
        for path in files:
            _sync(path)
            table[path.name] = {"bytes": path.stat().st_size, "sha256": _hash(path)}
        replace_text(part / MANIFEST, json.dumps({"meta": meta, "files": table}))
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        _sync(folder)
        replace_text(folder / POINTER, final.name)
        for old in sorted(folder.glob("step-*"))[:-keep]:
            if old != final:
                shutil.rmtree(old, ignore_errors=True)
    _barrier()
    return final


def fault(path: Path) -> str:
    """Why the checkpoint at `path` is not whole; empty when it is. Reads every byte."""
    try:
        doc = json.loads((path / MANIFEST).read_text())
        files: dict[str, dict[str, Any]] = doc["files"]
        int(doc["meta"]["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"no readable manifest ({type(error).__name__})"
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes, {entry['bytes']} were written"
        if _hash(file) != entry["sha256"]:
            return f"{name} is not what was written (checksum)"
    return "" if files else "it holds no files"


def newest(out: Path) -> Path | None:
    """The newest whole checkpoint under `out`: the pointed-to one, else the next older whole one.

    None when none was ever finished. RunFailedError when there are some and all are damaged.
    All ranks get the answer of rank 0.
    """
    answer: list[Any] = [None, ""]
    if not _running() or dist.get_rank() == 0:
        answer = list(_newest(out / FOLDER))
    if _running():
        dist.broadcast_object_list(answer, src=0)
    if answer[1]:
        raise RunFailedError(answer[1])
    return answer[0]  # type: ignore[no-any-return]


def _newest(folder: Path) -> tuple[Path | None, str]:
    names = [p.name for p in sorted(folder.glob("step-*"), reverse=True)]
    try:
        pointed = (folder / POINTER).read_text().strip()
        names = [n for n in names if n <= pointed] or names
    except OSError:
        pass
    faults = []
    for name in names:
        why = fault(folder / name)
        if not why:
            return folder / name, ""
        faults.append(f"{name}: {why}")
    if faults:
        return None, f"no whole checkpoint under {folder}: " + "; ".join(faults)
    return None, ""


def read_meta(path: Path) -> dict[str, Any]:
    """The JSON document that was saved with a checkpoint."""
    meta: dict[str, Any] = json.loads((path / MANIFEST).read_text())["meta"]
    return meta


def load(path: Path, state: dict[str, Tensor]) -> None:
    """Fill the tensors of `state` in place, whatever plan wrote them."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    load_shards(state, checkpoint_id=path, no_dist=not _running())
