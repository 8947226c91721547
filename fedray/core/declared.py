"""The declaration of a method: its name, what travels in its steps, and its hyper-parameters.

    @method("scaffold", "SCAFFOLD", "Karimireddy et al., ICML 2020, arXiv:1910.06378")
    class Scaffold(FedAvg):
        down = {"control": sent("weights", "the mean gradient of all clients")}
        up = {"change": sent("weights", "how its own mean gradient changed", combine="sum")}
        lr_server: LearningRate = 1.0

`down` and `up` become the `Fields` of payloads, with those of the bases, and annotated attributes
become the typed model `HParams`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from operator import attrgetter
from typing import Any

from fedray.core.payload import Declared, Fields, Payload

WAYS = ("down", "up")


def step(*, down: Any = None, up: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Declare what a client step other than `client_update` receives and uploads.

    Args:
        down: the fields of its download, by name (`sent`), or those of another step.
        up: the fields of its upload.
    """

    def declared(function: Callable[..., Any]) -> Any:
        vars(function).update(down=down, up=up)
        return function

    return declared


def gift(**fields: Declared) -> Any:
    """Return a client step that receives these fields and keeps them in the client's memory."""

    @step(down=fields)
    def keep(_: Any, __: Any, state: Any, down: Payload) -> Any:
        return None, state.with_memory(**vars(down))

    vars(keep).update(is_gift=True)
    return keep


def declare(cls: type[Any], root: type[Any]) -> None:
    """Make fields of payloads and hyper-parameters of what a method declares.

    Args:
        cls: the method.
        root: the base class of all methods.
    """
    for way in WAYS:
        setattr(cls, f"own_{way}", vars(cls).get(way, {}))
        fields: dict[str, Declared | None] = {}
        for base in reversed(cls.__mro__):
            fields |= vars(base).get(f"own_{way}", {})
        declared = {name: field for name, field in fields.items() if field is not None}
        if way in vars(cls) or declared != getattr(cls, way):
            setattr(cls, way, Fields(f"{cls.__qualname__}.{way}", declared))
    for name, function in vars(cls).items():
        for way in WAYS:
            if type(own := getattr(function, way, None)) is dict:
                setattr(function, way, Fields(f"{cls.__qualname__}.{name}.{way}", own))
    members = {name: vars(base)[name] for base in reversed(cls.__mro__) for name in vars(base)}
    for way, every in zip(WAYS, ("downloads", "uploads"), strict=True):
        parts = [getattr(cls, way), *(getattr(member, way, None) for member in members.values())]
        setattr(cls, every, tuple({of.place: of for of in filter(None, parts)}.values()))
    cls.gifts = tuple(name for name, one in members.items() if getattr(one, "is_gift", False))
    cls.HParams = _parameters(cls, root)


def _parameters(cls: type[Any], root: type[Any]) -> type[Any]:
    """Return the hyper-parameters of the bases and those that a method declares.

    Raises:
        TypeError: if an attribute without a type hides a hyper-parameter, or one with a type would
            make a hyper-parameter of what all methods have.
    """
    bases: list[Any] = [base for base in cls.__bases__ if issubclass(base, root)]
    found: dict[type[Any], None] = dict.fromkeys(base.HParams for base in bases)
    models = tuple(m for m in found if not any(m is not o and issubclass(o, m) for o in found))
    hints = {
        name: hint
        for name, hint in get_annotations(cls).items()
        if name in vars(cls) and not str(hint).startswith(("ClassVar", "typing.ClassVar"))
    }
    inherited = {name for model in models for name in model.model_fields}
    for name in vars(cls):
        if hasattr(root, name) if name in hints else name in inherited:
            raise TypeError(f"{cls.__name__}.{name}: hyper-parameters have types, nothing else has")
    rules = {name: vars(cls)[name] for name in ("check", "switched_off") if name in vars(cls)}
    if not hints and not rules and len(models) == 1:
        return models[0]
    values = {name: vars(cls)[name] for name in hints}
    for name in hints:
        setattr(cls, name, property(attrgetter(f"hp.{name}")))
    named = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.HParams"}
    kind: Any = type(models[0])
    body = {**named, "__doc__": f"Hyper-parameters of {cls.__name__}.", "__annotations__": hints}
    made: type[Any] = kind("HParams", models, {**body, **values, **rules})
    made.declared_in = cls
    return made
