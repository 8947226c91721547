"""The switches that reproduce a method's original code: its page names them, and they are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.base.shipped import names
from fedray.config import flatten, parse_assignments
from fedray.runtime.resolve import resolve

PAGES = Path(__file__).parents[2] / "docs" / "methods"
SWITCHES = {
    "alignfed": "algorithm.softmax=batch",
    "fedgen": "algorithm.untrained=true",
    "fedgh": "algorithm.server_batch_size=100",
    "fedglcl": "algorithm.weights=uniform text.style=plain",
    "fedmrl": "algorithm.clip_norm=10 algorithm.official_bug=true",
    "fedotp": "drop_last=true",
    "fedpgp": "drop_last=true",
    "fedproto": "algorithm.proto_agg=uniform",
    "fedtgp": "algorithm.stale=true",
    "fedtsp": "algorithm.learn_tau=true",
    "moon": "algorithm.first=initial model.init=independent",
    "pfedme": "optimizer.weight_decay=0.001 algorithm.weights=samples algorithm.test=global",
    "promptfl": "drop_last=true",
    "promptfolio": "drop_last=true",
}


@pytest.mark.parametrize("method", SWITCHES)
def test_a_page_names_switches_that_can_be_set(method):
    text = (PAGES / f"{method}.md").read_text().partition("## Deviations")[2]
    deviations = text.partition("\n## ")[0]
    experiment = "clip" if method in ("fedotp", "fedpgp", "promptfl", "promptfolio") else "digits"
    assignments = SWITCHES[method].split()
    name, besides = f"{method}_{experiment}", []
    if name not in names("experiments"):
        name, besides = "fedavg_digits", [f"algorithm={method}"]
    resolved = resolve(name, [*besides, *assignments])
    found = flatten(resolved.reproducibility_key())
    for key, value in parse_assignments(assignments):
        assert found.get(key, found.get(f"{key}.name")) == value, key
    for assignment in assignments:
        assert assignment.removeprefix("algorithm.") in deviations, assignment
