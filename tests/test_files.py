"""Where what can be made again lies."""

from __future__ import annotations

from fedray.files import cache_folder


def test_default_cache_folder(monkeypatch):
    monkeypatch.delenv("FEDRAY_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(cache_folder()) == "/home/somebody/.cache/fedray"
