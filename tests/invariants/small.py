"""A small FedTSP on digits: undisturbed, on any executor, and what must come out every time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment
from fedray.runtime.assembly import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.server import run_on_ray
from fedray.runtime.session import Session
from fedray.runtime.workers import RayExecutor, WorkerPool

WHERE_AND_HOW_FAST = ("workers", "cpus", "gpus", "server_cpus", "server_gpus")
MEASURED = ("wall_seconds", "startup_seconds", "peak_rss_bytes", "versions")


class Small:
    """FedTSP with a tiny BERT: six clients of two architectures, prompts that learn.

    Args:
        encoder: a folder with a BERT.
        home: where the undisturbed runs are kept.
    """

    def __init__(self, encoder: Path, home: Path) -> None:
        self._home = home
        self.assignments = [
            "rounds=3",
            "local_epochs=1",
            "data.clients=6",
            "data.samples=400",
            "data.partition.min_samples=10",
            "text.style=handcrafted",
            "cpus=1",
        ]
        self._text = [
            "model.feature_dim=16",
            "text.encoder=bert",
            f"text.encoder.path={encoder}",
        ]

    def experiment(self, *assignments: str) -> Experiment:
        """The experiment, with assignments laid on it."""
        text = [] if any(key.startswith("text.encoder") for key in assignments) else self._text
        return resolve("fedtsp_digits", [*self.assignments, *text, *assignments])

    def undisturbed(self, *assignments: str) -> Path:
        """The folder of a serial run to the end; run once, then kept."""
        experiment = self.experiment(*assignments)
        out = self._home / experiment.identity()
        if not out.exists():
            serially(experiment, out)
        return out


def serially(experiment: Experiment, out: Path) -> list[dict[str, Any]]:
    """Run, or go on, in this process; the rounds."""
    device = torch.device("cpu")
    return list(Session(experiment, out, lambda a: SerialExecutor(a, device)).rounds())


def on_workers(
    experiment: Experiment, out: Path, pool: WorkerPool, count: int | None = None
) -> list[dict[str, Any]]:
    """Run, or go on, with the first `count` workers of a pool; the server is this process."""
    few = pool if count is None else SimpleNamespace(workers=pool.workers[:count])
    return list(Session(experiment, out, lambda a: RayExecutor(a, few)).rounds())


def with_server_actor(experiment: Experiment, out: Path) -> list[dict[str, Any]]:
    """Run, or go on, as `python -m fedray.run` does on Ray; the rounds as they came."""
    return list(run_on_ray(experiment, out, time.time()))


def assert_same(one: Path, other: Path) -> None:
    """Both runs' result.json, but for times and memory, and all final tensors are equal."""
    assert numbers(one) == numbers(other)
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different


def numbers(out: Path) -> dict[str, Any]:
    """result.json without what says where and how fast it was made."""
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    for key in MEASURED:
        del result[key]
    for key in WHERE_AND_HOW_FAST:
        del result["config"][key]
    for key in ("max_failures", "reply_timeout_s"):
        del result["config"]["faults"][key]
    for record in result["rounds"]:
        del record["seconds"]
    return result


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint: the server's, the clients', those on their way."""
    identity = json.loads((out / "result.json").read_text())["identity"]
    found = CheckpointStore(out, identity).load()
    assert found is not None
    everything = {f"server/{name}": tensor for name, tensor in found.snapshot.server.items()}
    for client, state in found.clients.items():
        everything |= {f"{client}/model/{name}": value for name, value in state.model.items()}
        everything |= {f"{client}/memory/{name}": value for name, value in state.memory.items()}
    for item in found.snapshot.late:
        everything |= {
            f"late/{item.client}/{item.due}/{place}": tensor
            for place, _, _, tensor in item.uplink.tensors()
        }
    return everything


def last_round(out: Path) -> int:
    """The round of the last whole checkpoint, -1 before the first."""
    found = sorted(out.glob("checkpoints/round_*/meta.json"))
    return json.loads(found[-1].read_text())["round"] if found else -1


def command(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """`python -m fedray.run ARGUMENTS`, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedray.run", *arguments, "--no-track"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and whatever it started."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        if child.is_running():
            child.kill()
    process.wait()
    psutil.wait_procs(children, timeout=30)


def wait_for(what: Callable[[], Any], seconds: float = 90.0) -> Any:
    """The first true answer of `what`, asked again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"nothing within {seconds:g} s")


def actors(title: str) -> Iterator[psutil.Process]:
    """Processes of the Ray that this process started whose title begins so (`ray::Worker.step`)."""
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(title):
                yield process
        except psutil.Error:
            continue
