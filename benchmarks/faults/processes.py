"""Ray's processes below one of ours, and what a driver on Ray is run with."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

WORKER, SERVER = "ray::Worker", "ray::ServerActor"
"""How the processes of our actors are called; of a busy one, its step follows."""
ENDED_SECONDS = 120.0
"""How long what a killed driver leaves may take to end by itself."""


@contextmanager
def ray_folder() -> Iterator[Path]:
    """A short folder of its own for Ray's sockets: no other Ray is found there and joined."""
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


def below(pid: int) -> list[psutil.Process]:
    """All processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def actors(pid: int, title: str) -> list[psutil.Process]:
    """The processes of actors below a process: `WORKER` or `SERVER`."""
    found = []
    for process in below(pid):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.pid)


def still_there(processes: list[psutil.Process], seconds: float = ENDED_SECONDS) -> list[str]:
    """The titles of those that have not ended by themselves after so many seconds."""
    until = time.monotonic() + seconds
    left = processes
    while left and time.monotonic() < until:
        left = [process for process in left if _lives(process)]
        time.sleep(0.2)
    return [_title(process) for process in left]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80]
    except psutil.Error:
        return str(process.pid)
