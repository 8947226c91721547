"""Base classes and validation of typed plain data: bounded, immutable, without unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import to_json

from fedray.config.messages import mistakes
from fedray.errors import UserError
from fedray.registry import parameters_of, registry
from fedray.storage.files import check_name, check_path

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


def _as_name(text: str) -> str:
    try:
        return check_name(text)
    except UserError as error:  # pydantic collects only ValueErrors
        raise ValueError(str(error)) from None


Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed of random streams."""
LearningRate = Annotated[float, Field(gt=0, le=1e6)]
"""A learning rate."""
LossWeight = Annotated[float, Field(ge=0, le=1e6)]
"""The factor of a term of a loss; 0 leaves it out."""
Temperature = Annotated[float, Field(ge=1e-4, le=1e4)]
"""The divisor of a softmax's logits."""
Epochs = Annotated[int, Field(ge=1, le=10_000)]
"""A number of passes over the data, or of steps."""
PathText = Annotated[str, AfterValidator(check_path)]
"""A path, or a name that may be a path."""
FileName = Annotated[str, AfterValidator(_as_name)]
"""A text that can be part of the names of files and folders."""


class Frozen(BaseModel):
    """Base of all typed data: immutable; unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )


class Component(BaseModel):
    """An entry of a registry and its parameters.

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
        """The parameters, without the name."""
        return dict(self.model_extra or {})


def component_of(kind: str, default: str, params: Frozen | None = None) -> Any:
    """Declare a field of typed parameters that is itself a component.

    Args:
        kind: the kind of the component, a key of `fedray.registry.HOMES`.
        default: the name of the default component.
        params: the parameters of the default component.
    """
    values = {} if params is None else params.model_dump(mode="json", by_alias=True)
    return Field(Component(name=default, **values), json_schema_extra={"kind": kind})


class NoParams(Frozen):
    """The parameters of an entry without parameters."""


def named(default: str) -> BeforeValidator:
    """Return a validator that reads parameters without a name as those of `default`."""
    return BeforeValidator(
        lambda value: {"name": default, **value} if isinstance(value, Mapping) else value
    )


def validate(model: type[M], tree: Any, prefix: str = "") -> M:
    """Validate plain data as `model`, strictly: texts and numbers are not converted.

    Args:
        model: the typed model.
        tree: plain data.
        prefix: the dotted key of the tree in the experiment, for messages.

    Raises:
        UserError: with all mistakes, each with its key.
    """
    try:
        # As JSON, because strict validation of Python objects refuses a list for a tuple.
        return model.model_validate_json(to_json(tree, inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        raise UserError(mistakes(model, tree, error, prefix)) from None


def parameters(component: Component, kind: str, key: str) -> Frozen:
    """Return the typed parameters of a component.

    Args:
        component: the name and its parameters.
        kind: the kind of the component, a key of `fedray.registry.HOMES`.
        key: the experiment's key, for messages.

    Raises:
        UserError: if no such entry exists, or a parameter is unknown or out of bounds.
    """
    try:
        entry = registry(kind).get(component.name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    params: type[Frozen] = parameters_of(entry) or NoParams
    return validate(params, component.params, key)
