"""Functions that all benchmarks share: child processes, memory, synthetic data, timing in turns.

Child, serve            a process that answers lines, and the loop that it runs
tree_memory, PeakMemory the memory of a process and its descendants
actors, descendants     Ray's processes below a driver
ray_folder              a separate Ray session folder
write_noise             a data set of random images as parquet
time_in_turns, ratio    seconds of competing steps, and the ratio of two lists of seconds
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
WORKER, SERVER = "ray::Worker", "ray::ServerActor"
"""Prefixes of the titles of Ray's actor processes; the running method follows in a busy one."""
EXIT_SECONDS = 120.0
LAST_LINES = 40


# --- child processes ------------------------------------------------------------------------------


def environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of a child process that imports this checkout."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": str(threads),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


class Child:
    """A Python process that answers each line on its standard input with a line of JSON.

    If the process dies, every method raises `SystemExit` with the last lines of its standard error.

    Args:
        name: its name in error messages.
        words: arguments of `python`; the program must call `serve`.
        log: the file for its standard error.
        env: the environment; None for `environment()`.
    """

    def __init__(
        self, name: str, words: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._log = name, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, env=environment() if env is None else env, cwd=ROOT,
            )  # fmt: skip
        self.pid = self._process.pid

    def ask(self, line: str) -> Any:
        """Send a line; return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        for answer in self._process.stdout:
            if answer.startswith("{"):  # libraries may print other lines
                return json.loads(answer)["answer"]
        raise self._death()

    def close(self) -> None:
        """End the process by closing its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(timeout=EXIT_SECONDS):
            raise self._death()

    def _death(self) -> SystemExit:
        code = self._process.wait(timeout=EXIT_SECONDS)
        lines = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return SystemExit("\n".join([f"{self._name}: its process ended with code {code}", *lines]))


def serve(answer: Callable[[str], Any]) -> None:
    """Answer every line on standard input with one line of JSON; the loop of a `Child`."""
    for line in sys.stdin:
        print(json.dumps({"answer": answer(line.strip())}), flush=True)


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def actors(pid: int, *titles: str) -> list[psutil.Process]:
    """Return Ray's actor processes below a process, sorted by pid; `titles`: `WORKER`, `SERVER`."""
    matching = []
    for process in descendants(pid):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and words[0].startswith(titles):
            matching.append(process)
    return sorted(matching, key=lambda process: process.pid)


def still_running(processes: list[psutil.Process], seconds: float = EXIT_SECONDS) -> list[str]:
    """Return the command lines of the processes that have not ended after `seconds`."""

    def command(process: psutil.Process) -> str:
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.is_running():
                return " ".join(process.cmdline())[:80] or str(process.pid)
        except psutil.Error:
            pass
        return ""

    until = time.monotonic() + seconds
    while (running := list(filter(None, map(command, processes)))) and time.monotonic() < until:
        time.sleep(0.2)
    return running


@contextmanager
def ray_folder() -> Iterator[Path]:
    """Let Ray use a new, short session folder, so that it does not connect to another Ray."""
    folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(folder)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        yield folder
    finally:
        os.environ.pop("RAY_TMPDIR")
        if before is not None:
            os.environ["RAY_TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """Return the first of three consecutive free ports of the loopback address.

    The range lies below the kernel's ephemeral ports and does not overlap that of Ray's workers.
    """
    while True:
        port = SystemRandom().randrange(20_000, 30_000)
        try:
            for neighbour in range(port, port + 3):
                socket.create_server(("127.0.0.1", neighbour)).close()
        except OSError:
            continue
        return port


# --- memory ---------------------------------------------------------------------------------------


def memory(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 if the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def tree_memory(pid: int) -> int:
    """Return the proportional set size of a process and its descendants in bytes."""
    return memory(pid) + sum(memory(process.pid) for process in descendants(pid))


class PeakMemory:
    """The largest memory of a process tree while a `with` block runs, sampled twice a second.

    Args:
        pid: the root of the process tree.

    Attributes:
        bytes: the largest sample so far.
    """

    def __init__(self, pid: int) -> None:
        self.bytes, self._pid = 0, pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.bytes = max(self.bytes, tree_memory(self._pid))
            if self._over.wait(0.5):
                return


# --- synthetic data -------------------------------------------------------------------------------


def write_noise(folder: Path, count: int, size: int) -> Path:
    """Write `count` random colour images [size, size] with ten labels as a parquet data set.

    Does nothing if the folder exists. Returns the folder, the `data.root` of `data.source=parquet`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    if folder.exists():
        return folder
    random, images = np.random.default_rng(0), []
    for _ in range(count):
        buffer = io.BytesIO()
        pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
        images.append({"bytes": buffer.getvalue(), "path": None})
    folder.mkdir(parents=True)
    table = pa.table({"image": images, "label": random.integers(0, 10, count)})
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    (folder / "dataset_info.json").write_text(json.dumps({"class_names": list("0123456789")}))
    return folder


# --- timing ---------------------------------------------------------------------------------------


def time_in_turns(
    steps: Mapping[str, Callable[[], float]], turns: int, pause: float = 0.0
) -> dict[str, list[float]]:
    """Run competing steps one after the other, `turns` times; return the seconds of each turn.

    Args:
        steps: by name; each returns the seconds that it took.
        turns: how often each step runs.
        pause: seconds before each step, so that the threads of the previous process stop spinning.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            time.sleep(pause)
            seconds[name].append(step())
    return seconds


def ratio(seconds: Sequence[float], baseline: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, smallest and largest ratio of two lists of seconds, turn by turn."""
    ratios = [mine / other for mine, other in zip(seconds, baseline, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)
