"""Typed plain data: bounded, immutable, and checked when it is read."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedray.config.wrong import sentence
from fedray.errors import UserError, shown
from fedray.files import check_name, check_path

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

LARGEST = 3.4e38
"""The largest number of float32, in which models compute."""
LONGEST_TEXT = 10_000
"""Characters of a text; a path, a template or a long description has far fewer."""
UNSEEN = ("Cc", "Cs")
"""Unicode's categories of control characters and of halves of characters."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""What random streams are derived from."""
LearningRate = Annotated[float, Field(gt=0, le=1e6)]
"""Of gradient descent."""
LossWeight = Annotated[float, Field(ge=0, le=1e6)]
"""What a term of a loss is multiplied with; 0 leaves it out."""
Temperature = Annotated[float, Field(ge=1e-4, le=1e4)]
"""What the logits of a softmax are divided by."""
Epochs = Annotated[int, Field(ge=1, le=10_000)]
"""Passes over data, or steps, that are done at least once."""
PathText = Annotated[str, AfterValidator(check_path)]
"""A path, or a name that may be one."""
FileName = Annotated[str, AfterValidator(check_name)]
"""A name that files and folders are named after."""


class Frozen(BaseModel):
    """Base of everything typed: immutable; unknown keys, infinities and `yes` for 1 are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _means_what_it_says(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = set(plain_types(cls.model_fields[str(info.field_name)].annotation))
        for plain in _plain_values(value):
            _check_plain(plain, kinds)
        return value


def plain_types(annotation: Any) -> Iterator[Any]:
    """The plain types that an annotation allows; of a literal, those of its values."""
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
    elif inner := get_args(annotation):
        for each in inner:
            yield from plain_types(each)
    else:
        yield annotation


def _plain_values(value: Any) -> Iterator[Any]:
    """A value, or those in a list; what is a mapping checks its own."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _plain_values(inner)
    elif not isinstance(value, Mapping):
        yield value


def _check_plain(value: Any, kinds: set[Any]) -> None:
    """Refuse what would be taken for something else, and what no computation could hold.

    Raises:
        ValueError: with what was found.
    """
    is_number = bool(kinds & {int, float})
    if isinstance(value, bool):
        if is_number and bool not in kinds:
            raise ValueError(f"expected a number, found {str(value).lower()}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"expected a number of at most 64 bits, found {shown(value, 40)}")
    elif isinstance(value, float) and LARGEST < abs(value) < math.inf:
        raise ValueError(f"{value!r} is more than 32 bits hold, {LARGEST:g}")
    elif isinstance(value, str):
        if is_number and str not in kinds and _is_number(value):
            raise ValueError(f"expected a number, found the text {shown(value)}")
        _check_text(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_text(text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a text of {len(text)} characters, expected at most {LONGEST_TEXT}")
    for char in text:
        if not char.isprintable() and char not in "\n\t" and unicodedata.category(char) in UNSEEN:
            raise ValueError(f"{shown(text)} has a character that cannot be written, {char!a}")


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


def component_of(kind: str, default: str, params: Frozen | None = None) -> Any:
    """A field of typed parameters that is itself something chosen by name.

    Args:
        kind: the kind of thing, a key of `fedray.registry.HOMES`.
        default: the name that it has where none is given.
        params: its parameters then.
    """
    given = {} if params is None else params.model_dump(mode="json", by_alias=True)
    return Field(Component(name=default, **given), json_schema_extra={"kind": kind})


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
        raise UserError(sentence(model, error.errors()[0], prefix)) from None
