"""`fedray check`: a method that breaks a law is found; CI checks all shipped ones (.ci/run)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OFFENDERS = Path(__file__).with_name("offenders.py")
BROKEN = {
    "number_on_self": ("self", "NumberOnSelf.steps"),
    "array_on_self": ("self", "client_update changed ArrayOnSelf.losses"),
    "object_on_self": ("self", "client_update changed ObjectOnSelf.record"),
    "data_on_self": ("self", "server, round 1 changed DataOnSelf.rounds"),
    "unseeded_draw": ("draws", "round 1: server/model/"),
    "global_draw": ("draws", "round 0: server/model/head.weight"),
    "edited_download": ("arguments", "changed its download in place: weights."),
    "edited_state": ("arguments", "server, round 1 changed its state in place: model."),
    "order_of_clients": ("order", "round 1: server/model/"),
    "own_process": ("one worker", "round 1: server/model/"),
    "test_images": ("runs", "AttributeError: 'Client' object has no attribute 'test'"),
    "undeclared_field": ("runs", "Losses has other fields than declared: 'images'"),
    "undeclared_payload": (
        "runs",
        "a Secret cannot travel, expected a TrainedModel (`uploads`",
    ),
    "module_memory": ("resume", "round 1: server/model/"),
}
"""By method: a law that it breaks, and words of the difference."""
LAWS = 11


def checked(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run `fedray check`; return its exit code, and the difference of each law by method."""
    done = subprocess.run(
        [sys.executable, "-m", "fedray", "check", *words], capture_output=True, text=True
    )
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        if line[:1].isalpha() and not line.endswith("..."):
            method = line
            found[method] = {}
        elif line.startswith(("  holds ", "  BROKEN ")):
            law = line[10:22].strip()
            found[method][law] = "BROKEN" if "BROKEN" in line else ""
        elif line.startswith(" " * 10):
            found[method][law] += f" {line.strip()}"
    assert found, done.stderr
    return done.returncode, found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_method_that_breaks_a_law_is_found():
    code, found = checked("fedavg", *BROKEN, "--plugin", str(OFFENDERS))
    honest = found.pop("fedavg")
    assert len(honest) == LAWS
    assert not any(honest.values())
    for method, (law, words) in BROKEN.items():
        assert words in found[method][law], (method, found[method])
    assert found.keys() == BROKEN.keys()
    assert code == 1
