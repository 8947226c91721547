"""Typed plain data: what can be wrong with it is said in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedray.errors import UserError, nearest

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


class Frozen(BaseModel):
    """Base of everything typed: immutable; unknown keys, infinities and `yes` for 1 are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise ValueError(f"expected a number, found {str(value).lower()}")
        return value


class Component(BaseModel):
    """Something chosen by name, with parameters of its own.

    `partition: iid` and `partition: {name: dirichlet, alpha: 0.1}` are both valid.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def params(self) -> Tree:
        """The component's own parameters, without its name."""
        return dict(self.model_extra or {})


class NoParams(Frozen):
    """The parameters of what has none."""


def named(value: Any, default: str) -> Any:
    """Parameters without a name are the default component's."""
    return {"name": default, **value} if isinstance(value, Mapping) else value


def validate(model: type[M], tree: Any, prefix: str = "") -> M:
    """Validate `tree` as `model`.

    Args:
        model: the typed model.
        tree: plain data.
        prefix: the dotted place of the tree in the experiment, for messages.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise UserError(_sentence(model, error, prefix)) from None


def _sentence(model: type[BaseModel], error: ValidationError, prefix: str) -> str:
    first = error.errors()[0]
    places = [str(part) for part in first["loc"]]
    key = ".".join([prefix, *places] if prefix else places)
    if first["type"] == "extra_forbidden":
        owner: type[BaseModel] = model
        for part in places[:-1]:
            inner = owner.model_fields[part].annotation if part in owner.model_fields else None
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                owner = inner
        valid = [field.alias or name for name, field in owner.model_fields.items()]
        where = ".".join(key.split(".")[:-1]) or "the experiment"
        return f"unknown key '{places[-1]}' in {where}.{nearest(places[-1], valid)}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if first["type"] == "value_error":
        return f"{key}: {message}" if key else message
    found = first["input"]
    found = f" (got {found!r})" if isinstance(found, (int, float, str, bool)) else ""
    return f"{key}: {message}{found}"
