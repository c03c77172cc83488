"""A real SLURM on one Linux machine, for tests: a controller and nodes that can lose their power.

    python tests/cluster/slurm.py sinfo        # or any other command, while a cluster of two nodes is up

Needs Debian's `slurm-wlm` and `munge` and root; neither systemd nor cgroups nor /etc are touched. Everything lies in one
folder. Each daemon is the first process of a process namespace of its own and is killed with whoever started it, so
that a power cut is one signal, and nothing is left when a test ends, however it ends.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo", "unshare", "setpriv")
SECONDS = 60.0
_SBIN = os.pathsep.join(["/usr/sbin", "/sbin"])
# Accounting off and no cgroups, which this machine may lack; short times, so that failures are seen soon, but a long
# memory (MinJobAge), so that tests can ask at the end what became of each job.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=10
MessageTimeout=5
MinJobAge=86400
JobRequeue=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=5
GresTypes=gpu
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no cluster can be set up here, "" where it can."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), _SBIN])
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a SLURM of one's own needs root on Linux"
    absent = [name for name in (*DAEMONS, *COMMANDS) if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not found (apt-get install slurm-wlm munge)"
    tried = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "--uts", "true"], capture_output=True)
    return "this root may not make namespaces (unshare)" if tried.returncode else ""


class Cluster:
    """A context: the cluster is up inside it and gone after it.

    nodes: their names; each has `cpus` CPUs, `memory` MB and `gpus` GPUs, whatever the machine has: SLURM counts what it is
    told, and the GPUs are plain files.
    """

    def __init__(
        self, folder: Path, nodes: Sequence[str] = ("n1", "n2"), *, cpus: int = 2, memory: int = 64000, gpus: int = 1
    ) -> None:
        self.folder = folder.resolve()
        self.nodes = tuple(nodes)
        self.cpus, self.memory, self.gpus = cpus, memory, gpus
        self.daemons: dict[str, subprocess.Popen] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses the cluster. `srun` inside a job, which Snakemake calls without
        SLURM_CONF, is one that sets it again.
        """
        path = os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath), _SBIN])
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self) -> "Cluster":
        try:
            self._write()
            self._start("munge", ["munged", "--foreground", *self._munge()])
            until((self.folder / "munge.socket").exists, "munged listens", self._said)
            self._start("controller", ["slurmctld", "-D"])
            for node in self.nodes:
                self.boot(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.daemons)):
            self._kill(name)

    def boot(self, node: str) -> None:
        """Start the daemon of a node, which the controller takes back also after a power cut."""
        self._start(node, ["slurmd", "-D", "-N", node])
        until(lambda: self.states().get(node) in ("idle", "mix", "alloc"), f"{node} is up", self._said)

    def cut(self, node: str) -> None:
        """Cut the power of a node: its daemon and all its jobs are gone at once; tell the controller, as an operator
        or a monitor would.
        """
        self._kill(node)
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def call(self, *command: str) -> str:
        """Run a command of SLURM; return its output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """{node: state}, as idle, mix, down; empty where the controller does not answer."""
        command = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        return dict(line.split() for line in done.stdout.splitlines())

    def jobs(self) -> list[dict[str, str]]:
        """All jobs the controller remembers: id, state, node, restarts, gpus, comment (the rule)."""
        names = ("id", "state", "node", "restarts", "gpus", "comment")
        fields = ("JobID", "State", "NodeList", "RestartCnt", "tres-per-job", "Comment")
        form = "|,".join(f"{field}:.200" for field in fields)
        rows = self.call("squeue", "--noheader", "--states=all", f"--Format={form}").splitlines()
        return [dict(zip(names, (cell.strip() for cell in row.split("|")), strict=True)) for row in rows]

    def _write(self) -> None:
        for name in ("state", "bin"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        # munged wants nobody else to be able to write where its socket and key lie.
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = _free_ports(1 + len(self.nodes))
        lines = [_CONFIGURATION.format(folder=self.folder, port=ports[0])]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            size = f"CPUs={self.cpus} RealMemory={self.memory} Gres=gpu:{self.gpus}"
            lines.append(
                f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} {size} State=UNKNOWN\n"
            )
            (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        # The partition names all nodes, so it comes after them.
        text = lines[0].splitlines(keepends=True)
        (self.folder / "slurm.conf").write_text("".join([*text[:-1], *lines[1:], text[-1]]))
        devices = [self.folder / f"gpu{number}" for number in range(self.gpus)]
        for device in devices:
            device.touch()
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
        srun = shutil.which("srun")
        wrapper = self.folder / "bin" / "srun"
        wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {srun} "$@"\n')
        wrapper.chmod(0o755)

    def _munge(self) -> list[str]:
        names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
        names |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        return [f"--{option}={self.folder / name}" for option, name in names.items()]

    def _start(self, name: str, command: list[str]) -> None:
        # The kernel kills the keeper with this process, and the namespace's first process, hence all, with the keeper.
        keeper = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--uts",
        ]
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                [*keeper, *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        keeper = self.daemons.pop(name)
        # Of the namespace's first process, whose end takes all others with it and is what the keeper waits for.
        children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
            keeper.wait(SECONDS)
        keeper.kill()
        keeper.wait(SECONDS)

    def _said(self) -> str:
        """What the daemons have to say, for the message of a failure."""
        files = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(files))


def until(seen: Callable[[], bool], what: str, said: Callable[[], str] = str, seconds: float = SECONDS) -> None:
    """Wait until `seen()` holds; after `seconds` fail and tell what was `said`."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}\n{said()}"
        time.sleep(0.1)


def _free_ports(number: int) -> list[int]:
    holders = [socket.socket() for _ in range(number)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def main(command: Sequence[str]) -> int:
    """Run a command while a cluster is up; return its exit code."""
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="causal-priors-slurm-") as folder, Cluster(Path(folder)) as cluster:
        return subprocess.run(command or ["sinfo"], env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
