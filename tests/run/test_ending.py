"""How runs end before their time: one line, no rank left behind, and an exact continuation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import TOKENS, config, tiny
from test_faults import children, log, start

from gangsaw.errors import InputError
from gangsaw.run.config import TrainConfig
from gangsaw.run.room import check_room, needed_bytes, rank_bytes
from gangsaw.run.summary import run_summary
from gangsaw.run.trainer import Trainer
from gangsaw.spec import Plan

STEPS = 100_000
"""Never reached: the run is going whenever it is stopped."""
LIMIT_S = 600.0


def until(what, *, process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert process is None or process.poll() is None, "the run ended by itself"
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Ended, also where nobody has collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def last_step(job: Path) -> int:
    rows = log(job)
    return int(rows[-1]["step"]) if rows else 0


def losses(cfg: TrainConfig, count: int) -> list[float]:
    trainer = Trainer(cfg)
    return [trainer.step().loss for _ in range(count)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
def test_stopped_killed_and_bereaved_runs_say_one_line_and_go_on_exactly(pool, tmp_path):
    """SIGTERM to the run, kill -9 of the run, kill -9 of a rank; then all losses as in one go."""
    said = []
    for number, hit in enumerate(("run", "silently", "rank")):
        (tmp_path / "stderr.txt").write_text("")
        process = start(tmp_path, STEPS, *(["--resume"] if number else []))
        reached = last_step(tmp_path) + 4
        until(lambda want=reached: last_step(tmp_path) >= want, process=process)
        ranks = children(process.pid)
        assert len(ranks) >= 2
        if hit == "rank":
            os.kill(ranks[-1], signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGTERM if hit == "run" else signal.SIGKILL)
        code = process.wait(timeout=LIMIT_S)
        assert code == (-signal.SIGKILL if hit == "silently" else 1)
        until(lambda mine=ranks: all(gone(pid) for pid in mine))
        said.append((tmp_path / "stderr.txt").read_text().splitlines())
    stopped, _, bereaved = said
    assert stopped[1].startswith("gangsaw: stopped by SIGTERM; all 2 ranks have ended; --resume")
    assert re.match(r"gangsaw: rank [01] was killed by SIGKILL; --resume goes on", bereaved[1])
    assert [len(lines) for lines in said] == [2, 1, 2], said
    head = (tmp_path / "run" / "run.json").read_text()
    cfg = TrainConfig.model_validate(json.loads(head)["config"])
    found = {r["step"]: r["loss"] for r in log(tmp_path)}
    done = max(found)
    assert sorted(found) == list(range(1, done + 1))
    straight = pool.run(2, losses, cfg.model_copy(update={"resume": False}), done)[0]
    assert [found[s] for s in range(1, done + 1)] == straight


def test_step_times_of_a_resumed_run_are_those_of_its_last_start(tmp_path):
    cfg = config(Plan(dp=2), out=str(tmp_path))
    (tmp_path / "run.json").write_text(
        json.dumps({"config": cfg.model_dump(mode="json"), "torch": "2"})
    )
    rows = [(n, 9.0, 0, 4) for n in range(1, 8)] + [(n, 0.5, 7, 2) for n in range(8, 13)]
    (tmp_path / "log.jsonl").write_text(
        "".join(
            json.dumps({"step": n, "loss": 1.0, "seconds": s, "begun": begun, "ranks": ranks})
            + "\n"
            for n, s, begun, ranks in rows
        )
    )
    found = run_summary(tmp_path)
    assert (found["step_time_s"], found["step_time_hi_s"]) == (0.5, 0.5)
    assert (found["steps"], found["ranks"], found["timed_from"]) == (12, 2, 7)


def test_a_run_that_no_memory_holds_is_refused_with_what_would_fit():
    cfg = config(Plan(pp=2, mbs=100_000, num_microbatches=4), tiny(layers=8))
    memory = 2.0**33
    with pytest.raises(InputError, match=r"mbs=100000: .* GiB are predicted, 8\.00 GiB") as caught:
        check_room(cfg, memory)
    assert "\n" not in str(caught.value)
    largest = int(str(caught.value).partition("--mbs up to ")[2].split(",")[0])
    for mbs, fits in ((largest, True), (largest + 1, False)):
        plan = cfg.plan.model_copy(update={"mbs": mbs})
        assert (needed_bytes(cfg, plan) <= memory) == fits
    check_room(cfg.model_copy(update={"plan": Plan(pp=2)}), memory)
    with pytest.raises(InputError, match="a smaller model"):
        check_room(cfg, 1e6)


def test_ranks_on_one_host_share_its_memory_and_gpus_do_not():
    cfg = config(Plan(pp=2, dp=2, mbs=64, zero=0), tiny(layers=8))
    each = rank_bytes(cfg, cfg.plan)
    assert needed_bytes(cfg, cfg.plan) == pytest.approx(2 * sum(each))
    assert needed_bytes(cfg.model_copy(update={"device": "cuda"}), cfg.plan) == max(each)


def test_the_prediction_behind_a_refusal_is_no_more_than_what_a_rank_really_takes(pool):
    """Peak resident memory of a rank grows by at least what is predicted: refusals are safe."""
    big = config(Plan(mbs=512), tiny(layers=8), precision="fp32")
    small = config(Plan(mbs=1), tiny(layers=8), precision="fp32")
    grown = pool.run(1, resident, big)[0] - pool.run(1, resident, small)[0]
    predicted = rank_bytes(big, big.plan)[0] - rank_bytes(small, small.plan)[0]
    assert grown >= 0.9 * predicted
    assert sys.maxsize > grown > 0


def resident(cfg: TrainConfig) -> float:
    import resource

    trainer = Trainer(cfg, TOKENS)
    trainer.step()
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
