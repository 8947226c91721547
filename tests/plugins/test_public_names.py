"""Authors of methods learn few names and few hooks."""

from __future__ import annotations

from functools import cached_property

import fedray.plugin
from fedray.core import Algorithm, LocalTraining


def test_authors_import_few_names():
    imported = {name for name in vars(fedray.plugin) if not name.startswith("_")}
    assert imported == set(fedray.plugin.__all__)
    assert len(imported) <= 40


def test_a_method_has_few_hooks():
    """Functions that an author may override; what a method declares is a class attribute."""
    hooks = {
        name
        for owner in (Algorithm, LocalTraining)
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or hasattr(value, "__get__"))
        if not isinstance(value, type | dict | cached_property)
        and not getattr(value, "__final__", False)
    }
    assert "loss" in hooks
    assert len(hooks) <= 18, sorted(hooks)
