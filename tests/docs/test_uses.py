"""A method's page names every sweep that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from commands import study_tree

from _build.uses import Uses, uses
from fedray.base.shipped import files
from fedray.studies.space import parse_axis


def methods_of(tree: Mapping[str, Any]) -> Iterator[str]:
    """The methods of a sweep's own space and of its scales', joint axes among them."""
    for each in (tree, *tree["scales"].values()):
        for key, axis in (each.get("space") or {}).items():
            for config in parse_axis(key, axis).configs:
                chosen = config.get("algorithm")
                if chosen is not None:
                    yield chosen["name"] if isinstance(chosen, Mapping) else str(chosen)


@pytest.fixture(scope="module")
def known() -> Mapping[str, Uses]:
    """What every method is in."""
    return uses()


@pytest.mark.parametrize("name", sorted(files("sweeps")))
def test_every_method_of_a_sweep_knows_the_sweep(known, name):
    found = set(methods_of(study_tree(files("sweeps")[name])))
    assert [method for method in sorted(found) if name not in known[method].sweeps] == []
