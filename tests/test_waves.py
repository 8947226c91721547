"""Everybody is tested a few at a time: nothing is held for all at once, and no number changes."""

from __future__ import annotations

import pytest

import fedray.federation
from fedray.runtime.serial import SerialExecutor

METHODS = {
    "fedproto": {"finetune_epochs": 1},
    "feddistill": {},
    "fedtsp": {},
    "fedclip": {},
}
"""With downloads for all, with one for each, with texts, with cross-evaluations."""


@pytest.mark.parametrize("method", METHODS)
def test_in_waves_it_is_the_same(run, monkeypatch, method):
    changes = {"rounds": 2, **METHODS[method]}
    whole = run(method, changes)
    monkeypatch.setattr(fedray.federation, "WAVE", 3)
    asked, test = [], SerialExecutor.test
    monkeypatch.setattr(
        SerialExecutor,
        "test",
        lambda self, name, round_, down: asked.append(len(down)) or test(self, name, round_, down),
    )
    in_waves = run(method, changes)
    assert max(asked) == 3
    for one, other in zip(whole.results, in_waves.results, strict=True):
        assert (one.metrics, one.per_client) == (other.metrics, other.per_client)
        assert (one.up, one.down, one.absent) == (other.up, other.down, other.absent)
