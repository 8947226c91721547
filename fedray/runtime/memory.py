"""How much memory a process has held, and what it does with what is freed."""

from __future__ import annotations

import ctypes
import resource
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def peak_rss() -> int:
    """The most memory that this process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> None:
    """Have glibc keep what is freed instead of giving it back to the system after every step.

    A training step frees activations of many megabytes and asks for them again in the next one;
    given back, each page is faulted in anew: a quarter of the time of a small CNN on a CPU. Other
    C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
