"""A Slurm cluster on this host: a controller and two nodes, each a daemon that listens on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.provisioning.command import LocalRunner, end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import ChildProcess, CommandResult

NODES = ("one", "two")
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
_COMMAND_S = 30.0
_START_S = 40.0
#: If a node has not answered for this number of seconds, Slurm takes the node for dead.
_LOST_S = 10

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/%n.log
SlurmdTimeout={lost_s}
SchedulerParameters=sched_interval=2,requeue_setup_env_fail
BatchStartTimeout=20
KillWait=20
ReturnToService=1
GresTypes=gpu
NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={one_port} CPUs=2 RealMemory=8192 Gres=gpu:1 State=UNKNOWN
NodeName=two NodeHostname=localhost NodeAddr=127.0.0.1 Port={two_port} CPUs=2 RealMemory=8192 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """A running cluster; Slurm's commands find the cluster by SLURM_CONF."""

    folder: Path
    daemons: dict[str, ChildProcess] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *argv: str, env: dict[str, str] | None = None) -> CommandResult:
        return LocalRunner().run(
            list(argv), timeout_s=_COMMAND_S, env={**self.environment, **(env or {})}
        )

    def output(self, *argv: str) -> str:
        return self.run(*argv).check(argv[0]).stdout

    def start_node(self, name: str) -> None:
        """Start the daemon of a node, with the configuration of the whole cluster."""
        self._start(name, "slurmd", "-N", name)

    def jobs(self, *options: str) -> list[list[str]]:
        """Return the id, state, node and reason for the state of each job that has not ended."""
        lines = self.output("squeue", "-h", "-r", "-o", "%i|%T|%N|%r", *options).splitlines()
        return [line.split("|") for line in lines]

    def wait_until_over(self, timeout_s: float) -> None:
        def poll() -> Observation[bool]:
            left = self.jobs()
            return Observation(None if left else True, f"jobs left: {left}")

        wait_for("all jobs to end", poll, Deadline.after(timeout_s), interval_s=1.0)

    def kill_node(self, name: str) -> None:
        """Kill a node's daemon, to simulate a dead node."""
        end(self.daemons.pop(name))

    def _start(self, name: str, program: str, *options: str) -> None:
        log = self.folder / f"{name}.out"
        with log.open("ab") as output:
            self.daemons[name] = spawn(
                ["env", f"SLURM_CONF={self.folder}/slurm.conf", program, "-D", *options],
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster until the block ends.

    Raises RequirementError if Slurm is not installed, or this process does not run as root.
    """
    missing = [program for program in _PROGRAMS if _path_of(program) is None]
    if missing:
        raise RequirementError(
            f"There is no '{missing[0]}' on this host; install Slurm by `apt-get install slurm-wlm`."
        )
    if os.geteuid() != 0:
        raise RequirementError("Slurm's daemons are started by root only; run this test as root.")
    folder.mkdir(parents=True)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    ports = _free_ports(1 + len(NODES))
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            folder=folder,
            controller_port=ports[0],
            one_port=ports[1],
            two_port=ports[2],
            lost_s=_LOST_S,
        )
    )
    (folder / "gres.conf").write_text("AutoDetect=off\nNodeName=one,two Name=gpu File=/dev/null\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    cluster = Cluster(folder)
    cluster._start("controller", "slurmctld", "-c")
    try:
        for node in NODES:
            cluster.start_node(node)
        wait_for(
            "both nodes of Slurm", lambda: _idle(cluster), Deadline.after(_START_S), interval_s=0.5
        )
        yield cluster
    finally:
        cluster.run("scancel", "--user=root", "--signal=KILL")
        cluster.run("scancel", "--user=root")
        for daemon in cluster.daemons.values():
            end(daemon)
        _kill_steps(folder)


def _kill_steps(folder: Path) -> None:
    """Kill the steps of jobs that a failed test left, since steps outlive the daemon of their node."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _idle(cluster: Cluster) -> Observation[bool]:
    result = cluster.run("sinfo", "-h", "-N", "-o", "%N %t")
    ready = sum(line.endswith(" idle") for line in result.stdout.splitlines())
    return Observation(True if ready == len(NODES) else None, result.render())


def _path_of(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
