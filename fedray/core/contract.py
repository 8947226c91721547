"""What a payload must be: as its class declares it, and of an upload, as the step was asked for.

A check looks at names, shapes, dtypes and small statistics; whether large tensors are finite is
asked once, where they are copied (`gate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedray.core.algorithm import Algorithm, declared_upload
from fedray.core.client import Client
from fedray.core.payload import Bound, Declared, Payload, Template
from fedray.core.training import LocalTraining
from fedray.errors import FedrayError, NotFinite


class BadPayload(FedrayError):
    """A payload that is not as declared, a number that is not finite, or what cannot travel."""


class NotFinitePayload(BadPayload, NotFinite):
    """A payload with a number that is NaN or infinite."""


@dataclass(frozen=True)
class Call:
    """What a client's step was called with, which its upload must fit.

    Attributes:
        algorithm: the method.
        step: the step's name.
        client: the client, with an empty model of its architecture.
        down: what it was sent.
    """

    algorithm: Algorithm
    step: str
    client: Client
    down: Payload | None


# --- what a field may say of an upload -----------------------------------------------------------


def training_samples(call: Call) -> float:
    """How many samples the client trains on: its images, or their pixels in dense prediction."""
    train = call.client.train
    return len(train) * math.prod(train.all_labels.shape[1:])


def last_class(call: Call) -> float:
    """The number of the last class, C - 1."""
    return call.client.setting.num_classes - 1


def as_sent(name: str) -> Template:
    """Like the field of this name in what the client was sent."""
    return lambda call: getattr(call.down, name)


@dataclass(frozen=True)
class Shaped:
    """What a tensor of a template is like of which not every size is known.

    Attributes:
        sizes: of each axis a number, or a name; axes of one name in one mapping have one size.
        most: the greatest size of a named axis.
        dtype: of its entries.
    """

    sizes: tuple[int | str, ...]
    most: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class OneOf:
    """What a mapping of a template is like that has the names of one of several."""

    forms: tuple[Mapping[str, Any], ...]


def _as_sent_or_modelled(field: Declared, call: Call) -> tuple[Any, bool]:
    """What a mapping is like that says nothing of it, and whether names may be missing."""
    sent = getattr(call.down, field.name, None)
    if isinstance(sent, Mapping):
        return sent, False
    return call.client.skeleton.tensors, True


# --- checks --------------------------------------------------------------------------------------


def check_upload(payload: Any, call: Call, axes: Mapping[str, int]) -> None:
    """Check that an upload is what its step declares, and fits the client and what it was sent.

    Args:
        payload: what the step gave.
        call: what it was called with.
        axes: the sizes that the gate knows.

    Raises:
        BadPayload: naming the field.
    """
    validation = call.client.validation
    if validation is not None:
        axes = {**axes, "v": len(validation)}
    check_fields(payload, axes)
    for field in payload.declared():
        place, value = _place(payload, field), getattr(payload, field.name)
        if field.form == "mapping":
            _check_mapping(place, value, field, call)
        elif field.like is not None:
            _check_like(place, value, field.like(call))
        _check_bounds(place, value, field, call)


def check_type(payload: Any, call: Call) -> None:
    """Check that an upload is of the type that the step's return annotation names.

    Raises:
        BadPayload: with both types.
    """
    declared = uploaded_types(type(call.algorithm), call.step)  # type: ignore[arg-type]
    if declared is None or isinstance(payload, declared):
        return
    expected = " or ".join("None" if t is type(None) else f"a {t.__name__}" for t in declared)
    raise BadPayload(
        f"a {type(payload).__name__} cannot travel, expected {expected}: what {call.step} uploads "
        "by its return annotation"
    )


def check_fields(payload: Any, axes: Mapping[str, int]) -> None:
    """Check a payload of either direction: forms, shapes and dtypes as declared.

    Args:
        payload: any object.
        axes: known sizes by axis.

    Raises:
        BadPayload: naming the field.
    """
    if not isinstance(payload, Payload):
        raise BadPayload(f"a {type(payload).__name__} cannot travel, expected a Payload or None")
    fields, sizes = payload.declared(), dict(axes)
    odd = vars(payload).keys() ^ {field.name for field in fields}
    if odd:
        raise BadPayload(
            f"{type(payload).__name__} has other fields than declared: {sorted(odd)[0]!r}"
        )
    for field in fields:
        place, value = _place(payload, field), getattr(payload, field.name)
        if field.form == "tensor":
            _check_tensor(place, value)
            _check_shape(place, value, field, sizes)
        elif field.form == "mapping":
            _check_tree(place, value)
        elif type(value) is not int and (field.form == "int" or type(value) is not float):
            wanted = "an int" if field.form == "int" else "a float"
            raise BadPayload(f"{place} is a {type(value).__name__}, expected {wanted}")
        elif not math.isfinite(value):
            raise NotFinitePayload(f"{place} is {value}")


def _place(payload: Payload, field: Declared) -> str:
    return f"{type(payload).__name__}.{field.name}"


PLAIN: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)
"""Classes of tensors that travel; `fedray check` adds that of its pretended device."""


def _check_tensor(place: str, value: Any) -> None:
    """Check that something is a plain tensor: dense, with data, of no other class."""
    if type(value) not in PLAIN:
        raise BadPayload(f"{place} is a {type(value).__name__}, expected a tensor")
    if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        kind = "meta" if value.is_meta else "quantised" if value.is_quantized else value.layout
        raise BadPayload(f"{place} is a tensor of another kind ({kind}), expected a dense one")


def _check_tree(place: str, value: Any) -> None:
    """Check that something is a mapping of plain tensors by name, nested or not."""
    if not isinstance(value, Mapping):
        raise BadPayload(f"{place} is a {type(value).__name__}, expected a mapping of tensors")
    for name, inner in value.items():
        if not isinstance(name, str):
            raise BadPayload(f"{place} has the name {name!r}, expected a str")
        if not isinstance(inner, Tensor) and isinstance(inner, Mapping):
            _check_tree(f"{place}.{name}", inner)
        else:
            _check_tensor(f"{place}.{name}", inner)


def _check_shape(place: str, tensor: Tensor, field: Declared, sizes: dict[str, int]) -> None:
    """Check dtype and axes of a tensor; those seen first are noted in `sizes`."""
    if not field.axes:
        return
    if tensor.dtype != field.dtype:
        raise BadPayload(f"{place} is {_short(tensor.dtype)}, expected {_short(field.dtype)}")
    if tensor.dim() != len(field.axes):
        raise BadPayload(
            f"{place} has shape {list(tensor.shape)}, expected [{', '.join(field.axes)}]"
        )
    for axis, size in zip(field.axes, tensor.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise BadPayload(
                f"{place} has shape {list(tensor.shape)}, expected {axis} = {sizes[axis]}"
            )


def _check_mapping(place: str, value: Any, field: Declared, call: Call) -> None:
    if field.like is not None:
        template, partial = field.like(call), field.partial
    else:
        template, partial = _as_sent_or_modelled(field, call)
    _check_names(place, value, template, partial)


def _check_names(place: str, value: Any, template: Any, partial: bool) -> None:
    """Check a mapping against another: names, and shapes and dtypes of the tensors."""
    if isinstance(template, OneOf):
        template = _chosen(place, value, template)
    if isinstance(template, Tensor) and isinstance(value, Tensor):
        _check_shape_and_dtype(place, value, template)
        return
    if not isinstance(template, Mapping) or not isinstance(value, Mapping):
        _check_like(place, value, template)
        return
    sizes: dict[str, int] = {}
    for name, inner in value.items():
        if name not in template:
            raise BadPayload(f"{place} has '{name}', which does not belong there")
        if isinstance(template[name], Shaped):
            _check_sizes(f"{place}.{name}", inner, template[name], sizes)
        else:
            _check_names(f"{place}.{name}", inner, template[name], partial)
    if not partial and len(value) < len(template):
        missing = next(name for name in template if name not in value)
        raise BadPayload(f"{place} lacks '{missing}'")


def _chosen(place: str, value: Any, template: OneOf) -> Any:
    """The form whose names a mapping has."""
    names = value.keys() if isinstance(value, Mapping) else None
    for form in template.forms:
        if form.keys() == names:
            return form
    said = "a tensor" if names is None else f"the names {', '.join(names)}"
    wanted = " or ".join(", ".join(form) for form in template.forms)
    raise BadPayload(f"{place} has {said}, expected a mapping of {wanted}")


def _check_sizes(place: str, value: Any, template: Shaped, sizes: dict[str, int]) -> None:
    """Check a tensor of which some sizes are free; those seen first are noted in `sizes`."""
    if not isinstance(value, Tensor):
        raise BadPayload(f"{place} is a {type(value).__name__}, expected a tensor")
    if value.dtype != template.dtype:
        raise BadPayload(f"{place} is {_short(value.dtype)}, expected {_short(template.dtype)}")
    shape, said = list(value.shape), ", ".join(map(str, template.sizes))
    if len(shape) != len(template.sizes):
        raise BadPayload(f"{place} has shape {shape}, expected [{said}]")
    for wanted, size in zip(template.sizes, shape, strict=True):
        if isinstance(wanted, str):
            if size > template.most:
                raise BadPayload(
                    f"{place} has shape {shape}, expected {wanted} of at most {template.most}"
                )
            wanted = sizes.setdefault(wanted, size)
        if size != wanted:
            raise BadPayload(f"{place} has shape {shape}, expected [{said}] with {sizes}")


def _check_like(place: str, value: Any, template: Any) -> None:
    """Check that a tensor has the shape and dtype of another."""
    if isinstance(value, Mapping) or isinstance(template, Mapping):
        expected = "a mapping" if isinstance(template, Mapping) else "a tensor"
        raise BadPayload(f"{place} is a {type(value).__name__}, expected {expected}")
    _check_shape_and_dtype(place, value, template)


def _check_shape_and_dtype(place: str, value: Tensor, template: Tensor) -> None:
    if value.shape != template.shape:
        raise BadPayload(f"{place} has shape {list(value.shape)}, expected {list(template.shape)}")
    if value.dtype != template.dtype:
        raise BadPayload(f"{place} is {_short(value.dtype)}, expected {_short(template.dtype)}")


def _check_bounds(place: str, value: Any, field: Declared, call: Call) -> None:
    """Check a number, or every entry of a small tensor, against what the field declares."""
    low, high = _bound(field.low, call), _bound(field.high, call)
    if low is None and high is None:
        return
    if isinstance(value, Tensor):
        _check_entries(place, value, field, low, high)
    elif low is not None and value < low:
        raise BadPayload(f"{place} is {value}, expected at least {low:g}")
    elif high is not None and value > high:
        raise BadPayload(f"{place} is {value}, expected at most {high:g}")


def _check_entries(
    place: str, value: Tensor, field: Declared, low: float | None, high: float | None
) -> None:
    if not value.numel():
        raise BadPayload(f"{place} is empty")
    least, most = (float(bound) for bound in value.aminmax())
    if not math.isfinite(most - least):
        raise NotFinitePayload(f"{place} holds {least:g} to {most:g}")
    if low is not None and not least >= low:
        raise BadPayload(f"{place} holds {least:g}, expected at least {low:g}")
    if high is not None and not most <= high:
        raise BadPayload(f"{place} holds {most:g}, expected at most {high:g}")
    if field.distinct and len(set(value.tolist())) < value.numel():
        raise BadPayload(f"{place} holds an entry twice, expected distinct ones")


def _bound(bound: Bound | None, call: Call) -> float | None:
    return bound(call) if callable(bound) else bound


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- what a step uploads -------------------------------------------------------------------------


@cache
def uploaded_types(method: type[Algorithm], step: str) -> tuple[type, ...] | None:
    """What a client's step uploads by its return annotation, `tuple[LocalPrototypes, ClientState]`.

    The step of `LocalTraining` uploads what `finish` gives.

    Returns:
        Types of payload, and NoneType where it may upload nothing; None when it does not say.
    """
    if step == "client_update" and _is_template(method):
        step = "finish"
    return declared_upload(getattr(method, step, None))


def _is_template(method: type[Algorithm]) -> bool:
    update: Callable[..., Any] = method.client_update
    return issubclass(method, LocalTraining) and update is LocalTraining.client_update
