"""A real Slurm runs the exported script cut down to one node, and reads its full headers."""

import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from export_jobs import PLANS

from gangsaw.export import export_plan

pytestmark = pytest.mark.soak
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A controller, one registered node with eight devices, and 256 nodes that are down."""
    for program in PROGRAMS:
        assert shutil.which(program), f"{program} is missing; apt-get install slurmctld slurmd"
    root = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (root / name).mkdir()
    for index in range(8):
        try:
            os.mknod(root / f"gpu{index}", 0o020666, os.makedev(1, 3))
        except PermissionError:
            (root / f"gpu{index}").touch()
    (root / "gres.conf").write_text(f"NodeName={host} Name=gpu File={root}/gpu[0-7]\n")
    (root / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n"
        f"AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={root}/munge.sock\n"
        f"SlurmctldPort={free_port()}\nSlurmdPort={free_port()}\nStateSaveLocation={root}/state\n"
        f"SlurmdSpoolDir={root}/spool\nSlurmctldPidFile={root}/ctld.pid\n"
        f"SlurmdPidFile={root}/d.pid\nSlurmctldLogFile={root}/ctld.log\n"
        f"SlurmdLogFile={root}/d.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
        "SelectType=select/cons_tres\nGresTypes=gpu\nReturnToService=2\nMpiDefault=none\n"
        "SlurmdParameters=config_overrides\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs=64 SocketsPerBoard=1 CoresPerSocket=64"
        " ThreadsPerCore=1 RealMemory=1000 Gres=gpu:8\n"
        "NodeName=far[1-256] NodeAddr=127.0.0.2 CPUs=64 RealMemory=1000 Gres=gpu:8 State=DOWN\n"
        f"PartitionName=near Nodes={host} Default=YES State=UP\n"
        "PartitionName=far Nodes=far[1-256] State=UP\n"
    )
    (root / "key").write_bytes(os.urandom(64))
    (root / "key").chmod(0o400)
    root.chmod(0o755)
    env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
    munge = subprocess.Popen(
        ["munged", "-F", "-f", f"--key-file={root}/key", f"--socket={root}/munge.sock",
         f"--pid-file={root}/m.pid", f"--log-file={root}/m.log", f"--seed-file={root}/seed"],
    )  # fmt: skip
    time.sleep(1)
    controller = subprocess.Popen(["slurmctld", "-D", "-c"], env=env)
    node = subprocess.Popen(["slurmd", "-D", "-N", host], env=env)
    try:
        for _ in range(60):
            shown = subprocess.run(
                ["sinfo", "-h", "-p", "near", "-o", "%T"],
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            if shown.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        assert shown.stdout.strip() == "idle", (root / "d.log").read_text()[-2000:]
        yield root, env
    finally:
        for process in (node, controller, munge):
            process.terminate()
        for process in (node, controller, munge):
            process.wait(timeout=30)


def test_the_script_runs_on_one_node(slurm, tmp_path):
    _, env = slurm
    text = export_plan(*PLANS["dense"], "slurm").main.text
    assert "#SBATCH --nodes=1\n" in text
    stub = tmp_path / "bin"
    stub.mkdir()
    seen = tmp_path / "seen"
    (stub / "torchrun").write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" > {seen}\necho ranks started\n'
    )
    (stub / "torchrun").chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(text.replace("%x-%j.out", f"{tmp_path}/out"))
    done = subprocess.run(
        ["sbatch", "--wait", str(script)], capture_output=True, text=True, check=False,
        env={**env, "PATH": f"{stub}:{env['PATH']}"}, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    words = seen.read_text().splitlines()
    assert words[words.index("--nnodes") + 1] == "1"
    assert words[words.index("--nproc-per-node") + 1] == "8"
    assert re.fullmatch(r"[\w.-]+:29500", words[words.index("--rdzv-endpoint") + 1])
    assert words[words.index("train") + 1] == "plan.toml"
    assert "tp = 2\n" in (tmp_path / "plan.toml").read_text()


@pytest.mark.parametrize(("name", "nodes"), [("interleaved", 8), ("uneven", 64), ("latent", 128)])
def test_slurm_reads_the_headers_of_the_full_size(slurm, tmp_path, name, nodes):
    _, env = slurm
    script = tmp_path / "job.sbatch"
    script.write_text(export_plan(*PLANS[name], "slurm").main.text)
    done = subprocess.run(
        ["sbatch", "--parsable", "--hold", "--partition=far", str(script)], env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    shown = subprocess.run(
        ["scontrol", "show", "job", number], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert f"NumNodes={nodes}-{nodes}" in shown or f"NumNodes={nodes} " in shown
    assert "TresPerNode=gres:gpu:8" in shown or "TresPerNode=gres/gpu:8" in shown
    assert "JobName=gangsaw-" in shown
    subprocess.run(["scancel", number], env=env, check=True)
