"""Base classes and validation of typed plain data: bounded, immutable, without unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, core_schema, to_json

from fedray.base.errors import UserError, shown
from fedray.config.messages import INNER, mistakes
from fedray.config.registry import parameters_of, registry
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


@dataclass(frozen=True)
class Role:
    """Annotation of a field with what it means for the comparison of runs, by name."""

    name: str


class Frozen(BaseModel):
    """Base of all typed data: immutable; unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        allow_inf_nan=False,
        validate_default=True,
    )

    def switched_off(self) -> Mapping[str, str]:
        """Return the fields that the values of other fields make ineffective, with the reasons."""
        return {}


class Entry(Frozen):
    """An entry of a registry that is its own typed parameters, for example an optimiser.

    Its parameters are its annotated attributes with their docstrings. Two entries are equal if
    their classes and their parameters are.
    """

    name: ClassVar[str]
    """The name in an experiment."""
    version: ClassVar[int] = 1
    """The version of the code; raised by a commit that changes its numbers."""
    paper: ClassVar[str] = "-"
    """Authors, venue and arXiv number; "-" if there is no paper."""


@dataclass(frozen=True)
class Component:
    """An entry of a registry and its parameters.

    Attributes:
        kind: the kind of the entry, a key of `fedray.config.registry.HOMES`.
        name: the name of the entry.
        params: the typed parameters.
    """

    kind: str
    name: str
    params: Frozen

    def build(self) -> Any:
        """Return the entry with its parameters: a partition, a text encoder, ..."""
        return self.params

    def tree(self) -> Tree:
        """Return the component as plain data: the name and all parameters."""
        return {"name": self.name, **self.params.model_dump(mode="json", by_alias=True)}


@dataclass(frozen=True)
class Chosen:
    """Annotation of a field that chooses an entry of a registry.

    With `partition: Annotated[Component, Chosen("partition")]`, `partition: iid` and
    `partition: {name: dirichlet, alpha: 0.1}` are both valid. The parameters are validated with the
    field, which may be a parameter of another component.

    Args:
        kind: the kind of the entry, a key of `fedray.config.registry.HOMES`.
        unnamed: the entry of a mapping without a name; None if every mapping needs one.
    """

    kind: str
    unnamed: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return pydantic's schema: read a component, write it as plain data."""
        written = core_schema.plain_serializer_function_ser_schema(Component.tree)
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def read(self, value: Any) -> Component:
        """Validate a name, or a mapping of name and parameters.

        Raises:
            ValueError: if no entry has the name, or a parameter is unknown or out of bounds.
        """
        if isinstance(value, Component):
            return value
        tree = {"name": value} if isinstance(value, str) else value
        name = tree.get("name", self.unnamed) if isinstance(tree, Mapping) else None
        if not isinstance(tree, Mapping) or not isinstance(name, str):
            example = f"{{name: {self.unnamed or 'NAME'}, ...}}"
            found = "it has no name" if isinstance(tree, Mapping) else f"found {shown(value)}"
            raise ValueError(f"expected a name, or a mapping {example}; {found}")
        try:
            entry = registry(self.kind).get(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        model: type[Frozen] = parameters_of(entry)
        params = {key: value for key, value in tree.items() if key != "name"}
        try:
            return Component(self.kind, entry.name, _strictly(model, params))
        except ValidationError as error:
            parts = {"parts": (model, params, error)}
            raise PydanticCustomError(INNER, "invalid parameters", parts) from None


def default_entry(name: str | Tree) -> Any:
    """Return the default of a field that is annotated as `Chosen`; validated with the others."""
    return name


def component(kind: str, name: str, *, key: str = "", **params: Any) -> Component:
    """Return a component with validated parameters.

    Args:
        kind: the kind of the entry, a key of `fedray.config.registry.HOMES`.
        name: the name of the entry.
        key: the experiment's key, for messages; by default the kind.
        **params: its parameters.

    Raises:
        UserError: if no such entry exists, or a parameter is unknown or out of bounds.
    """
    read = TypeAdapter(Annotated[Component, Chosen(kind)])
    value = {"name": name, **params}
    try:
        return read.validate_python(value)
    except ValidationError as error:
        raise UserError(mistakes(Frozen, value, error, key or kind)) from None


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
        return _strictly(model, tree)
    except ValidationError as error:
        raise UserError(mistakes(model, tree, error, prefix)) from None


def _strictly(model: type[M], tree: Any) -> M:
    # As JSON, because strict validation of Python objects refuses a list for a tuple.
    return model.model_validate_json(to_json(tree, inf_nan_mode="constants"), strict=True)
