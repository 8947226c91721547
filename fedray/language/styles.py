"""Text styles: how the texts that represent a class are made, Eq. (3) of FedTSP.

A style is a class registered by name, here or in another file.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from fedray.config import Component, Frozen, NoParams, parameters
from fedray.errors import UserError
from fedray.language.descriptions import (
    MOST_TEXTS,
    ClassDescriptions,
    Descriptions,
    display_name,
    load_descriptions,
    shipped_names,
)
from fedray.language.templates import DESCRIPTION, ENSEMBLE, HANDCRAFTED, PLAIN
from fedray.registry import Registry

P = TypeVar("P", bound=Frozen)


@dataclass(frozen=True)
class TextStyle(ABC, Generic[P]):
    """How the texts of a class are made.

    Subclasses are the entries of `styles`; their docstring's first line is their description.

    Attributes:
        name: what `text.style` calls it.
        Params: the type of its parameters.
        paper: its source, or "-".
        needs_descriptions: whether class names alone are not enough.
        params: the parameters.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Frozen]] = NoParams
    paper: ClassVar[str]
    needs_descriptions: ClassVar[bool]

    params: P

    @abstractmethod
    def texts(
        self,
        descriptions: Descriptions | None,
        class_names: Sequence[str],
        template: str = DESCRIPTION,
    ) -> list[list[str]]:
        """Return the texts p_{c,j} that represent each class.

        Args:
            descriptions: of the classes; None is enough where no style needs them.
            class_names: the classes, in the order of their labels; underscores become blanks.
            template: how label and description make a text, where descriptions are used.

        Returns:
            For each of C classes, its k texts.

        Raises:
            UserError: if something that the style needs is missing or the template is wrong.

        Paper: FedTSP Eq. (3).
        """


styles: Registry[type[TextStyle[Any]]] = Registry("text style", "fedray.language.styles")


def text_style(component: Component) -> TextStyle[Any]:
    """Return the text style of a component, with validated parameters.

    Raises:
        UserError: if there is no such style, or a parameter is unknown or out of bounds.
    """
    params = parameters(component, "text style", "text.style")
    return styles.get(component.name)(params)


def class_texts(
    style: TextStyle[Any],
    class_names: Sequence[str],
    descriptions: str | None = None,
    template: str = DESCRIPTION,
) -> list[list[str]]:
    """Return the k texts of each class; read descriptions only if the style needs them.

    Args:
        style: how they are made.
        class_names: the classes, in the order of their labels.
        descriptions: the name of a shipped file or the path of a JSON file.
        template: see `TextStyle.texts`.

    Raises:
        UserError: as `load_descriptions` and `TextStyle.texts`.
    """
    if descriptions is None or not style.needs_descriptions:
        return style.texts(None, class_names, template)
    return style.texts(load_descriptions(descriptions, class_names), class_names, template)


class DescriptionStyle(TextStyle[P]):
    """Base of styles that put each class's descriptions into `text.template`.

    Attributes:
        key: the part of a descriptions file that it needs.
    """

    needs_descriptions = True
    key: ClassVar[str]

    @abstractmethod
    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        """Return the descriptions of a class that are used; none where the part is missing."""

    def texts(
        self,
        descriptions: Descriptions | None,
        class_names: Sequence[str],
        template: str = DESCRIPTION,
    ) -> list[list[str]]:
        """Return a text for each selected description of each class, see `TextStyle.texts`."""
        _check_template(template)
        if descriptions is None:
            raise UserError(
                f"text.style={self.name} needs text.descriptions: a shipped name "
                f"({', '.join(shipped_names())}) or a JSON file; or set text.style=handcrafted"
            )
        return [
            [
                template.format(label=display_name(name), description=description)
                for description in self._selected(descriptions, name)
            ]
            for name in class_names
        ]

    def _selected(self, descriptions: Descriptions, name: str) -> tuple[str, ...]:
        selected = self.select(descriptions.classes[name])
        if not selected:
            raise UserError(
                f"text.descriptions: {descriptions.source}, class '{name}': "
                f'text.style={self.name} needs "{self.key}", which is missing or too short; add it '
                "or set text.style=fine"
            )
        return selected


class TemplateStyle(TextStyle[NoParams]):
    """Base of styles that put the class's name, and nothing else, into fixed templates.

    Attributes:
        templates: the k templates, each with {label}.
    """

    needs_descriptions = False
    templates: ClassVar[tuple[str, ...]]

    def texts(
        self,
        descriptions: Descriptions | None,
        class_names: Sequence[str],
        template: str = DESCRIPTION,
    ) -> list[list[str]]:
        """Return a text for each of the style's templates; only `class_names` is used."""
        labels = [display_name(name) for name in class_names]
        return [[form.format(label=label) for form in self.templates] for label in labels]


class FineParams(Frozen):
    """Parameters of `fine`."""

    count: int | None = Field(None, ge=1, le=MOST_TEXTS)
    """k, how many of a class's sentences, the first ones; None: all (FedTSP: 3)."""


@styles.add
class Fine(DescriptionStyle[FineParams]):
    """Sentences on a class's look, each in a text of its own (k = 3)."""

    name = "fine"
    Params = FineParams
    paper = "FedTSP, Eq. (3)"
    key = "Fine-grained Descriptions"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        """Return the first sentences; none where there are not as many."""
        count = self.params.count or len(entry.fine)
        return entry.fine[:count] if len(entry.fine) >= count else ()


@styles.add
class Short(DescriptionStyle[NoParams]):
    """One phrase on a class's look."""

    name = "short"
    paper = "FedTSP, Fig. 5"
    key = "Short Description"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        return () if entry.short is None else (entry.short,)


@styles.add
class Long(DescriptionStyle[NoParams]):
    """A paragraph on a class's look."""

    name = "long"
    paper = "FedTSP, Fig. 5"
    key = "Long Description"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        return () if entry.long is None else (entry.long,)


@styles.add
class Handcrafted(TemplateStyle):
    """The text "A photo of a {label}." alone, without a description."""

    name = "handcrafted"
    paper = "FedTSP, Table 4 and Fig. 5"
    templates = (HANDCRAFTED,)


@styles.add
class Plain(TemplateStyle):
    """The text "a photo of a {label}", in lower case and without a full stop."""

    name = "plain"
    paper = "FedGLCL, official code"
    templates = (PLAIN,)


@styles.add
class Ensemble(TemplateStyle):
    """CLIP's 80 templates and five more around a class's name, to be averaged (k = 85)."""

    name = "ensemble"
    paper = "FedGLCL, Table 9"
    templates = ENSEMBLE


@styles.add
class Name(TemplateStyle):
    """The class's name alone."""

    name = "name"
    paper = "FedGLCL, Table 9"
    templates = ("{label}",)


def _check_template(template: str) -> None:
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        parts = []
    fields = {field for _, field, _, _ in parts if field is not None}
    formatted = any(spec or conversion for _, _, spec, conversion in parts)
    if "description" not in fields or fields - {"label", "description"} or formatted:
        raise UserError(
            f"text.template='{template}' must hold {{description}}, may hold {{label}} and no "
            f"other field, for example '{DESCRIPTION}'"
        )
