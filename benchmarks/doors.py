"""The listening sockets of a local Ray: whose they are, where, and what answers without a token.

    python -m benchmarks.doors                 # fedray.run, fedray.sweep and start-head.sh
    python -m benchmarks.doors run --open      # with what fedray changes of Ray's defaults undone

Each command runs a small experiment in a temporary folder and is ended once it trains. The same for
a Ray of your own that is running: `ss -ltnp`.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import psutil

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["rounds=500", "local_epochs=1", "workers=1", "data.clients=4", "data.samples=240"]
KINDS = {
    "run": "`python -m fedray.run`",
    "sweep": "`python -m fedray.sweep`",
    "head": "`clusters/laptop/start-head.sh`",
}
OPEN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_enable_metrics_collection": "1"}
"""Ray's own defaults on Linux."""

CALLS = [
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.NodeManagerService/GetNodeStats",
    "ray.rpc.ObjectManagerService/Pull",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "ray.rpc.ReporterService/HealthCheck",
    "ray.rpc.RayletDriver/ClusterInfo",
]
"""A harmless call to each of Ray's gRPC services."""


@dataclass(frozen=True, order=True)
class Door:
    """A listening TCP socket.

    Attributes:
        process: what has it.
        host: the address that it is bound to; 0.0.0.0 and :: are all addresses.
        port: its port.
    """

    process: str
    host: str
    port: int

    @property
    def on_loopback(self) -> bool:
        """Whether this machine alone can reach it."""
        return self.host.removeprefix("::ffff:").startswith("127.") or self.host == "::1"

    def answer(self) -> str:
        """What it says to who has no token."""
        everywhere = self.host in ("0.0.0.0", "::")
        host = "127.0.0.1" if everywhere else self.host.removeprefix("::ffff:")
        try:
            connection = http.client.HTTPConnection(host, self.port, timeout=10)
            connection.request("GET", "/metrics")
            reply = connection.getresponse()
            return f"HTTP {reply.status}, {len(reply.read())} bytes"
        except (http.client.HTTPException, OSError):
            return _grpc_answer(f"{host}:{self.port}")


def _grpc_answer(address: str) -> str:
    """The status of the first of `CALLS` that the server knows."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        for call in CALLS:
            try:
                reply = channel.unary_unary(f"/{call}")(b"", timeout=10)
                return f"gRPC {len(reply)} bytes"
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    return f"gRPC {error.code().name}"
    return "no answer"


def _title(process: psutil.Process) -> str:
    """Its script, module or the name that Ray gave it."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):
        return words[0].split()[0].partition(".")[0].rstrip(":") or words[0]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-m":
            return following
        if word.endswith(".py"):
            return "/".join(Path(word).parts[-2:])
    return process.name()


def doors(root: int) -> list[Door]:
    """The listening sockets of a process and of all that it has started."""
    found = []
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        try:
            title = _title(process)
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found.append(Door(title, each.laddr.ip, each.laddr.port))
        except psutil.NoSuchProcess:
            continue  # a worker that has just ended
    return sorted(found)


def free_port() -> int:
    """The first of three ports of the loopback address that nobody has now.

    It is neither one that the system gives to whoever asks for any, nor one of Ray's own workers'.
    """
    while True:
        port = SystemRandom().randrange(20_000, 30_000)
        try:
            for each in range(port, port + 3):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        return port


def command(kind: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """What starts `run`, `sweep` or `head`, and its environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "HOME": str(folder),  # the token is made anew in there
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FEDRAY_RESULTS": str(folder / "results"),
        "FEDRAY_CACHE": str(folder / "cache"),
        "FEDRAY_RAY_TMP": str(folder / "head"),
        "RAY_TMPDIR": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    python = [sys.executable, "-m"]
    if kind == "run":
        out = str(folder / "results" / "run")
        return [*python, "fedray.run", "fedavg_digits", *SMALL, "--out", out, "--no-track"], env
    if kind == "sweep":
        return [
            *python,
            "fedray.sweep",
            "fedprox_mu",
            *SMALL,
            "--num-samples",
            "1",
            "--no-track",
        ], env
    env |= {"FEDRAY_RAY_PORT": str(free_port()), "FEDRAY_DASHBOARD_PORT": str(free_port())}
    options = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000"]
    return ["bash", str(ROOT / "clusters" / "laptop" / "start-head.sh"), *options], env


def is_up(kind: str, folder: Path, pid: int) -> bool:
    """Whether it trains, or, of the head node, whether all its processes are there."""
    if kind != "head":
        return any(folder.glob("results/**/result.json"))
    titles = {door.process for door in doors(pid)}
    return {"ray::DashboardAgent", "ray::RuntimeEnvAgent", "raylet"} <= titles


def comes_up(kind: str, folder: Path, process: psutil.Popen) -> bool:
    """Wait until it is up; False when it ends by itself, or needs more than ten minutes."""
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if is_up(kind, folder, process.pid):
            return True
        time.sleep(0.5)
    return False


def end(process: psutil.Popen) -> None:
    """End a process and all that it has started."""
    family = [process]
    with suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
        process.terminate()
    for left in psutil.wait_procs(family, timeout=30)[1]:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    psutil.wait_procs(family, timeout=30)


@contextmanager
def running(kind: str, folder: Path, **extra: str) -> Iterator[int]:
    """The id of a process that runs `run`, `sweep` or `head`, until the end of the block.

    Raises:
        RuntimeError: when it does not start.
    """
    log = folder / f"{kind}.log"
    for _ in range(3):  # Ray gives itself 30 s to start, however busy the machine
        words, env = command(kind, folder)
        with log.open("w") as file:
            process = psutil.Popen(words, env=env | extra, cwd=ROOT, stdout=file, stderr=file)
        try:
            if comes_up(kind, folder, process):
                yield process.pid
                return
        finally:
            end(process)
        shutil.rmtree(folder / "results", ignore_errors=True)
    raise RuntimeError(f"{kind} does not run: {log.read_text()[-2000:]}")


def settled(pid: int) -> list[Door]:
    """Its listening sockets, once the last process of it has opened its own."""
    before: list[Door] = []
    for _ in range(30):
        now = doors(pid)
        if now == before:
            break
        before = now
        time.sleep(1)
    return before


def table(found: list[Door]) -> str:
    """A Markdown table; equal rows of several workers are one."""
    rows = Counter((door.process, door.host, door.answer()) for door in found)
    lines = ["| process | listens on | to who has no token |", "|---|---|---|"]
    for (process, host, answer), count in rows.items():
        times = f" ({count} times)" if count > 1 else ""
        lines.append(f"| `{process}`{times} | {host} | {answer} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table of each command; 1 when one of them can be reached from elsewhere."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.doors", description=__doc__)
    cli.formatter_class = argparse.RawDescriptionHelpFormatter
    cli.add_argument("kind", nargs="*", choices=[*KINDS, []], help="default: all")
    cli.add_argument("--open", action="store_true", help="Ray's own defaults: the table before")
    args = cli.parse_args(argv)
    reachable = False
    for kind in args.kind or KINDS:
        folder = Path(tempfile.mkdtemp(prefix="doors", dir="/tmp"))
        try:
            with running(kind, folder, **(OPEN if args.open else {})) as pid:
                found = settled(pid)
                print(f"\n{KINDS[kind]}\n\n{table(found)}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        reachable |= not all(door.on_loopback for door in found)
    return 1 if reachable else 0


if __name__ == "__main__":
    sys.exit(main())
