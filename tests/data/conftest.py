from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Every test has a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDRAY_CACHE", str(folder))
    return folder
