"""Names that differ between the older commit and this checkout.

Empty a table again when the comparison with the older commit is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KEYS: Mapping[str, str | None] = {}
"""Old key -> new key; None: the key is gone, and what it chose is the only behaviour."""
ENTRIES: Mapping[str, str] = {}
"""Old name of a method, source, encoder, ... -> new name, wherever it is a value."""
METRICS: Mapping[str, str] = {}
"""Old name of a metric -> new name."""


def spellings(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings as they are, then with the new names, then with the old ones."""
    yield dict(settings)
    yield _renamed(settings, KEYS, ENTRIES)
    keys_back = {new: old for old, new in KEYS.items() if new is not None}
    yield _renamed(settings, keys_back, {new: old for old, new in ENTRIES.items()})


def _renamed(
    settings: Mapping[str, Any], keys: Mapping[str, str | None], entries: Mapping[str, str]
) -> dict[str, Any]:
    named = {keys.get(key, key): entry_of(value, entries) for key, value in settings.items()}
    return {key: value for key, value in named.items() if key is not None}


def entry_of(value: Any, entries: Mapping[str, str]) -> Any:
    """Return a value, or its mapping's `name`, under its new name."""
    if isinstance(value, Mapping):
        return {k: entry_of(v, entries) if k == "name" else v for k, v in value.items()}
    return entries.get(value, value) if isinstance(value, str) else value


def metric_of(place: str) -> str:
    """Return the place of a value with the new name of its metric, which is its last part."""
    head, _, name = place.rpartition(": ")
    return f"{head}: {METRICS[name]}" if name in METRICS else place
