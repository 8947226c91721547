"""The mapping `sources` of an experiment file, which says where its values come from.

    sources:
      rounds: paper, Sec. 4.1
      lr: official code, main.py
      data.augment: "ours: open in the paper"

A source refers to a key that the file sets or inherits, or to all keys of a section (`optimizer`).
A file that overrides a key must state its source again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedray.base.errors import UserError, shown
from fedray.config.files import ExperimentFile, flatten, merged

KINDS = ("paper", "official code", "ours")
"""Valid beginnings of a source."""


def sources_of(chain: Sequence[ExperimentFile]) -> dict[str, str]:
    """Return the source of each key that the files of `read_chain` set; "" without one.

    Raises:
        UserError: if `sources` is no mapping, names a key that is not set, or has a text that does
            not begin with one of `KINDS`.
    """
    for index, file in enumerate(chain):
        _check(file, flatten(merged(chain[: index + 1])))
    return {key: _source_of(key, chain) for key in flatten(merged(chain))}


def _check(file: ExperimentFile, keys: Mapping[str, object]) -> None:
    if not isinstance(file.sources, Mapping):
        raise UserError(
            f"{file.path}: sources is {shown(file.sources)}, expected keys and their sources"
        )
    for key, source in file.sources.items():
        if not any(key in _with_parents(setting) for setting in keys):
            raise UserError(f"{file.path}: sources names {key}, which is not set; remove it")
        if not isinstance(source, str) or not source.startswith(KINDS):
            raise UserError(
                f"{file.path}: sources.{key} is {shown(source)}, expected a text that begins with "
                f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
            )


def _source_of(key: str, chain: Sequence[ExperimentFile]) -> str:
    """Return the last source that the setting file, or a file that extends it, states for a key."""
    setters = [index for index, file in enumerate(chain) if key in flatten(file.tree)]
    for file in reversed(chain[setters[-1] :]):
        for place in _with_parents(key):
            if place in file.sources:
                return str(file.sources[place])
    return ""


def _with_parents(key: str) -> Iterator[str]:
    """Yield "a.b.c", "a.b" and "a"."""
    while key:
        yield key
        key = key.rpartition(".")[0]
