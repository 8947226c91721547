"""The processors that this process may use."""

from __future__ import annotations

import os


def allowed_cpus() -> int:
    """Return the number of CPUs of this process's affinity, which only Linux knows."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
