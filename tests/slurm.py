"""A Slurm of our own on this machine: controller and two node daemons on loopback, without cgroups.

All it has lies in one folder below /tmp, and it touches no Slurm that is installed as a service.
Node n1 is 127.0.0.2, node n2 127.0.0.3.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.common import free_port

ROOT = Path(__file__).resolve().parents[1]
NODES = ("n1", "n2")
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun", "squeue")
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIGURATION = """\
ClusterName=fedray
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
KillWait=10
FirstJobId={first}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.2 Port={ports[1]} CPUs=2 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.3 Port={ports[2]} CPUs=2 RealMemory=8000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    missing = [name for name in COMMANDS if shutil.which(name, path=SYSTEM) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurmctld slurmd slurm-client munge)"
    if os.geteuid() != 0:
        return "Slurm's node daemon starts jobs as root alone"
    return None


def wait_until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Look again and again.

    Raises:
        AssertionError: when it is not so in time.
    """
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.3)


class Slurm:
    """Controller, nodes and jobs.

    Attributes:
        folder: all that they write.
        environment: what Slurm's commands and jobs are started with.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "home", "venv/bin", "logs"):
            (folder / name).mkdir(parents=True)
        path = f"{Path(sys.executable).parent}:{SYSTEM}"
        (folder / "venv/bin/activate").write_text(f"export PATH={path}\n")
        self.environment = {
            "PATH": path,
            "HOME": str(folder / "home"),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": str(folder),
            "FEDRAY_VENV": str(folder / "venv"),
            "FEDRAY_CACHE": str(folder / "cache"),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything; returns when both nodes take jobs."""
        text = CONFIGURATION.format(
            folder=self.folder,
            host=socket.gethostname(),
            ports=[free_port() for _ in range(3)],
            first=os.getpid() % 1000 + 1,
        )
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        options = {"key-file": "key", "socket": "sock", "seed-file": "seed", "pid-file": "pid"}
        own = [f"--{name}={self.folder}/munge.{end}" for name, end in options.items()]
        self._daemon("munged", "munged", "--foreground", *own, f"--log-file={self.folder}/munged")
        wait_until((self.folder / "munge.sock").exists, 20, "munged")
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a node's daemon and wait until the node takes jobs."""
        self._daemon(node, "slurmd", "-D", "-N", node)
        wait_until(lambda: self.state_of(node) == "IDLE", 60, f"{node} is {self.state_of(node)}")

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / "logs" / name).open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def command(self, *words: str, **more: str) -> str:
        """What one of Slurm's commands prints; `more` is added to its environment."""
        done = subprocess.run(
            words,
            env=self.environment | more,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def state_of(self, node: str) -> str:
        """IDLE, MIXED, DOWN and so on; nothing while the controller does not answer."""
        found = subprocess.run(
            ["scontrol", "-o", "show", "node", node],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        state = re.search(r" State=(\w+)", found.stdout)
        return state[1] if state else ""

    def lose(self, node: str) -> None:
        """End all of a node at once, as a power cut does: daemon, steps, their processes.

        All are stopped first: an srun that outlives its step has the controller cancel it, which
        reaches the step of that number of the job's next start once the node is back.
        """
        daemon = self._daemons.pop(node)
        tasks = [pid for pid, told in self._processes() if told.get("SLURMD_NODENAME") == node]
        steps = {ancestor for pid in tasks for ancestor in ancestors(pid) if is_step(ancestor)}
        for kind in (signal.SIGSTOP, signal.SIGKILL):
            for pid in [*tasks, *steps, daemon.pid]:
                send(kind, pid)
        daemon.wait()

    def stop(self) -> None:
        """Cancel all jobs and end everything that was started here."""
        subprocess.run(["scancel", "--me", "--full"], env=self.environment, timeout=60, check=False)
        deadline = time.monotonic() + 30
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.3)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            daemon.wait(30)
        for pid, _ in self._processes():
            send(signal.SIGKILL, pid)

    def _processes(self) -> list[tuple[int, Mapping[str, str]]]:
        """The processes of jobs of this Slurm, and what they were told by their environment."""
        own = {daemon.pid for daemon in self._daemons.values()}
        found = []
        for entry in Path("/proc").iterdir():
            told = environment_of(entry) if entry.name.isdigit() else {}
            is_ours = told.get("SLURM_CONF") == self.environment["SLURM_CONF"]
            if is_ours and "SLURM_JOB_ID" in told and int(entry.name) not in own:
                found.append((int(entry.name), told))
        return found


def environment_of(process: Path) -> Mapping[str, str]:
    """What a process was started with; nothing if it is gone."""
    try:
        words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, its parent and so on."""
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        pid = int(status.split("PPid:")[1].split()[0])
        yield pid


def is_step(pid: int) -> bool:
    """Whether a process is one of Slurm's that watch a step."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")
    except OSError:
        return False


def send(kind: signal.Signals, pid: int) -> None:
    """Send a signal to a process that this Slurm started."""
    with suppress(ProcessLookupError):
        os.kill(pid, kind)


@contextmanager
def running_slurm() -> Iterator[Slurm]:
    """A Slurm that takes jobs, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fs", dir="/tmp"))
    folder.chmod(0o755)  # munged and slurmd refuse what is narrower or wider
    slurm = Slurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
