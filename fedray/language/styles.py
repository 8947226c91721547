"""Text styles, which make the texts that represent a class, Eq. (3) of FedTSP.

A style is a class that is registered by name, here or in another file.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from fedray.base.errors import UserError
from fedray.config import Frozen, NoParams
from fedray.language.descriptions import (
    MOST_TEXTS,
    ClassDescriptions,
    Descriptions,
    display_name,
    load_descriptions,
    shipped_names,
)
from fedray.registry import Registry

P = TypeVar("P", bound=Frozen)

DESCRIPTION = "A photo of a {label}: {description}"
"""Eq. (3) of FedTSP, with the article of the official code."""

CLIP_ENSEMBLE = tuple(
    (Path(__file__).parent / "clip_templates.txt").read_text(encoding="utf-8").splitlines()
)
"""CLIP's 80 templates for ImageNet (Radford et al., ICML 2021), as in the official code."""

ENSEMBLE = (
    *CLIP_ENSEMBLE,
    "a photo of a {label}",
    "a picture of a {label}",
    "an image of a {label}",
    "a photo of one {label}",
    "{label}",
)
"""85 templates for averaged texts: CLIP's 80 and five of ours. FedGLCL averages 85, too, but does
not list them."""


@dataclass(frozen=True)
class TextStyle(ABC, Generic[P]):
    """Base of all text styles.

    Subclasses are the entries of `styles`; the first line of a docstring describes the entry.

    Attributes:
        name: the style's name in `text.style`.
        version: the version of the code; raised by a commit that changes its numbers.
        Params: the type of its parameters.
        paper: its source, or "-".
        needs_descriptions: whether the style needs descriptions besides class names.
        params: the parameters.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
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
            descriptions: the descriptions of the classes; None if the style does not need them.
            class_names: the classes, in the order of their labels; underscores become blanks.
            template: format of a text with {label} and {description}, for description styles.

        Returns:
            The k texts of each of C classes.

        Raises:
            UserError: if a required description is missing, or the template is invalid.

        Paper: FedTSP Eq. (3).
        """


styles: Registry[type[TextStyle[Any]]] = Registry("text style", "fedray.language.styles")


def class_texts(
    style: TextStyle[Any],
    class_names: Sequence[str],
    descriptions: str | None = None,
    template: str = DESCRIPTION,
) -> list[list[str]]:
    """Return the k texts of each class; read descriptions only if the style needs them.

    Args:
        style: the text style.
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
        key: the field of a description file that the style needs.
    """

    needs_descriptions = True
    key: ClassVar[str]

    @abstractmethod
    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        """Return the descriptions of a class that the style uses; empty if the field is missing."""

    def texts(
        self,
        descriptions: Descriptions | None,
        class_names: Sequence[str],
        template: str = DESCRIPTION,
    ) -> list[list[str]]:
        _check_template(template)
        if descriptions is None:
            raise UserError(
                f"text.style={self.name} needs text.descriptions: a shipped name "
                f"({', '.join(shipped_names())}) or a JSON file; or set text.style=handcrafted"
            )
        return [
            [
                template.format(label=descriptions.classes[name].label, description=description)
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
    """Base of styles that put only the class's name into fixed templates.

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
        labels = [display_name(name) for name in class_names]
        return [[form.format(label=label) for form in self.templates] for label in labels]


class FineParams(Frozen):
    """Parameters of `fine`."""

    count: int | None = Field(None, ge=1, le=MOST_TEXTS)
    """k, the number of sentences to use per class, the first ones; None: all (FedTSP: 3)."""


@styles.add
class Fine(DescriptionStyle[FineParams]):
    """Sentences about a class's appearance, one per text (k = 3)."""

    name = "fine"
    Params = FineParams
    paper = "FedTSP, Eq. (3)"
    key = "Fine-grained Descriptions"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        count = self.params.count or len(entry.fine)
        return entry.fine[:count] if len(entry.fine) >= count else ()


@styles.add
class Short(DescriptionStyle[NoParams]):
    """One phrase about a class's appearance."""

    name = "short"
    paper = "FedTSP, Fig. 5"
    key = "Short Description"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        return () if entry.short is None else (entry.short,)


@styles.add
class Long(DescriptionStyle[NoParams]):
    """A paragraph about a class's appearance."""

    name = "long"
    paper = "FedTSP, Fig. 5"
    key = "Long Description"

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        return () if entry.long is None else (entry.long,)


@styles.add
class Handcrafted(TemplateStyle):
    """The text "A photo of a {label}.", without a description."""

    name = "handcrafted"
    paper = "FedTSP, Table 4 and Fig. 5"
    templates = ("A photo of a {label}.",)


@styles.add
class Plain(TemplateStyle):
    """The text "a photo of a {label}", in lower case and without a full stop."""

    name = "plain"
    paper = "FedGLCL, official code"
    templates = ("a photo of a {label}",)


@styles.add
class Ensemble(TemplateStyle):
    """CLIP's 80 templates and five more around the class's name, averaged (k = 85)."""

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
