"""Every entry of a registry describes itself, and its parameters can be written out."""

from __future__ import annotations

from collections import Counter

import pytest

from fedray.config import component
from fedray.config.registry import HOMES, parameters_of, registry, summary_of

KEYS = {
    "optimizer": "optimizer",
    "learning rate schedule": "lr_schedule",
    "CLIP": "model.clip",
    "data source": "data.source",
    "partition": "data.partition",
    "data evolution": "data.evolution",
    "public data": "data.public",
    "augmentation": "data.augment",
    "text encoder": "text.encoder",
    "text style": "text.style",
}
"""The key of each kind that is chosen by name and parameters."""
WITHOUT_PAPER = ("data source", "data evolution", "public data", "metric", "model group")
REQUIRED = {
    "vectors": {"path": "vectors.txt"},
    "steps": {"milestones": [1]},
    "repartition": {"phases": [{"round": 2}]},
}
"""Parameters that have no default."""


@pytest.mark.parametrize("kind", HOMES)
def test_an_entry_describes_itself(kind):
    entries = registry(kind).entries()
    summaries = Counter(summary_of(entry) for entry in entries)
    for entry in entries:
        assert 10 < len(summary_of(entry)) <= 120, entry.name
        assert summaries[summary_of(entry)] == 1, "an inherited docstring describes another"
        assert kind in WITHOUT_PAPER or entry.paper, entry.name


@pytest.mark.parametrize("kind", KEYS)
def test_a_component_is_completed_once_and_for_all(kind):
    for entry in registry(kind).entries():
        required = REQUIRED.get(entry.name, {})
        complete = component(kind, entry.name, **required)
        assert complete.name == entry.name
        written = complete.tree()
        assert len(written) == 1 + len(parameters_of(entry).model_fields), entry.name
        assert component(kind, **written) == complete
        assert required or complete.params == parameters_of(entry)()
