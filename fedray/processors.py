"""The processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def allowed_cpus() -> int:
    """Return the number of CPUs of this process's affinity and cgroup, at least 1.

    A container's or a job's limit may be far below the machine's number of CPUs, and systems other
    than Linux know no affinity.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, int(min([cpus, *_quotas()])))


def _quotas() -> Iterator[float]:
    """Yield the CPU quotas of this process's cgroups and of those above them."""
    for folder in _cgroups():
        with suppress(OSError, ValueError):
            yield _quota(folder)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of this process's cgroups that limit CPUs (versions 1 and 2)."""
    try:
        lines = OWN.read_text("utf-8").splitlines()
    except OSError:  # a system without cgroups
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top, group = CGROUPS / ("cpu" if controllers else ""), PurePosixPath(path.lstrip("/"))
        yield from (top / folder for folder in (group, *group.parents))


def _quota(folder: Path) -> float:
    """Return the CPUs that a cgroup may use; raise an OSError or a ValueError without a limit."""
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text("ascii").split()
    else:
        quota = (folder / "cpu.cfs_quota_us").read_text("ascii")
        period = (folder / "cpu.cfs_period_us").read_text("ascii")
    if int(quota) <= 0:
        raise ValueError("no limit")
    return int(quota) / int(period)
