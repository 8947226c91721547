"""Format seconds and bytes."""

from __future__ import annotations


def size_of(count: float) -> str:
    """Format bytes: "12 B", "3.4 kB", "5.6 MB", "7.8 GB", in powers of 1,000."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.99995 * factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def time_of(seconds: float) -> str:
    """Format seconds: "0.4 s", "23 s", "4 min 10 s", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
