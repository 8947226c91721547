"""Keys without effect: those that nothing reads in an experiment, because of its other keys.

An entry states what it does not read (`unread`), and a section or the parameters of an entry state
what their own values switch off (`switched_off`). Such keys are no part of an experiment's
identity; `fedray.runtime.resolve` refuses or names those that a user has given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from fedray.config.input_files import all_values
from fedray.config.registry import registry
from fedray.config.schema import Chosen, Component, Frozen

F = TypeVar("F", bound=Frozen)


class NoEffect(NamedTuple):
    """Why a key has no effect.

    Attributes:
        reason: a main clause for messages.
        is_refused: whether a user's value is refused, because an entry never reads the key; else
            it is named, for example because another value switches the key off.
    """

    reason: str
    is_refused: bool = True


def keys_without_effect(experiment: Frozen) -> dict[str, NoEffect]:
    """Return the dotted keys that nothing reads; a section or component stands for all its keys."""
    found: dict[str, NoEffect] = {}
    for place, part in _components(experiment):
        entry = registry(part.kind).get(part.name)
        if hasattr(entry, "unread") and place.count(".") < 2:  # not inside another component
            for key, cause in entry.unread(experiment).items():
                found[key] = cause._replace(reason=f"{place}={part.name} {cause.reason}")
    components = ((place, part.params) for place, part in _components(experiment))
    for place, owner in (*_sections(experiment), *components):
        if is_below(place, found):
            continue
        for name, reason in owner.switched_off().items():
            key = f"{place}.{name}" if place else name
            found.setdefault(key, NoEffect(reason, is_refused=False))
    return found


def is_below(key: str, others: Collection[str]) -> bool:
    """Return True if a dotted key is one of others, or a key of one of them."""
    return any(key == other or key.startswith(f"{other}.") for other in others)


def without_unread(experiment: F, keys: Collection[str]) -> F:
    """Return an experiment in which keys have their defaults."""
    for key in keys:
        experiment = _reset(experiment, key)
    return experiment


def _sections(experiment: Frozen) -> Iterator[tuple[str, Frozen]]:
    """Yield an experiment and its sections, with their keys."""
    yield "", experiment
    for name in type(experiment).model_fields:
        if isinstance(value := getattr(experiment, name), Frozen):
            yield name, value


def _components(experiment: Frozen) -> Iterator[tuple[str, Component]]:
    """Yield the components that keys choose, with their keys; those in lists are left out."""
    for key, value in all_values(experiment):
        if isinstance(value, Component) and not any(part.isdigit() for part in key.split(".")):
            yield key, value


def _reset(part: F, path: str) -> F:
    name, _, rest = path.partition(".")
    fields = type(part).model_fields
    name = next(own for own, field in fields.items() if name in (own, field.alias))
    field, value = fields[name], getattr(part, name)
    if not rest:
        value = field.get_default(call_default_factory=True)
        for mark in (mark for mark in field.metadata if isinstance(mark, Chosen)):
            value = mark.read(value)
    elif isinstance(value, Component):
        value = replace(value, params=_reset(value.params, rest))
    else:
        value = _reset(value, rest)
    return part.model_copy(update={name: value})
