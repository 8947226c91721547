"""The typed parameters of what an experiment chooses by name."""

from __future__ import annotations

from fedray.config.typed import Component, Frozen, NoParams, validate
from fedray.errors import UserError
from fedray.registry import parameters_of, registry


def parameters(component: Component, kind: str, key: str) -> Frozen:
    """Return the typed parameters of a component.

    Args:
        component: the name and its parameters.
        kind: the kind of thing, a key of `fedray.registry.HOMES`.
        key: the experiment's key, for messages.

    Raises:
        UserError: if there is no such entry, or a parameter is unknown or out of bounds.
    """
    try:
        entry = registry(kind).get(component.name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    params: type[Frozen] = parameters_of(entry) or NoParams
    return validate(params, component.params, key)
