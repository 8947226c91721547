"""Sentences about comparisons with original code, from the records in tests/originals/."""

from __future__ import annotations

import json
from pathlib import Path

RECORDS = Path(__file__).parents[2] / "tests" / "originals"
SHORT = 7
"""Digits of an abbreviated commit hash."""


def originals(method: str) -> list[str]:
    """Return a sentence for each original implementation that a method was compared with."""
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))
    ]
    return [_sentence(record) for record in records if record["method"] == method]


def _sentence(record: dict) -> str:
    repository, commit = record["repository"], record["commit"]
    link = f"[{repository}](https://github.com/{repository}/tree/{commit})"
    switches = " ".join(switch.removeprefix("algorithm.") for switch in record["switches"])
    under = f", with `{switches}`" if switches else ""
    changes = "; ".join(record["changes"])
    changed = f" Changes to the original code: {changes}." if changes else ""
    return (
        f"{link} at {commit[:SHORT]}: weights agree to {_bound(record)} after three rounds, with "
        f"all and with half of the clients per round{under}.{changed}"
    )


def _bound(record: dict) -> str:
    """Return the largest difference, rounded up to one digit; at least float32's precision, 1e-7."""
    mantissa, exponent = f"{max(1e-7, *record['difference'].values()):.1e}".split("e")
    whole = -int(-float(mantissa) // 1)
    return f"1e{int(exponent) + 1}" if whole == 10 else f"{whole}e{int(exponent)}"
