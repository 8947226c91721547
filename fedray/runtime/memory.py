"""How much memory a process has held."""

from __future__ import annotations

import resource
import sys


def peak_rss() -> int:
    """The most memory that this process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
