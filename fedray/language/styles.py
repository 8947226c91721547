"""Text styles, which make the texts that represent a class, Eq. (3) of FedTSP.

A style is a class that is registered by name, here or in another file.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedray.base.errors import UserError
from fedray.config import Entry
from fedray.config.registry import Registry
from fedray.language.descriptions import (
    MOST_TEXTS,
    ClassDescriptions,
    display_name,
    load_descriptions,
    shipped_names,
)

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


class TextStyle(Entry):
    """Base of all text styles: templates around the class's name, or a field of descriptions.

    Subclasses are the entries of `styles`; the first line of a docstring describes the entry.
    """

    templates: ClassVar[tuple[str, ...]] = ()
    """The k templates, each with {label}, of a style without descriptions."""
    field: ClassVar[str] = ""
    """The field of a description file that fills {description}; "" without descriptions."""

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        """Return the descriptions of a class that the style uses; empty if there are none."""
        content = entry.model_dump(by_alias=True)[self.field]
        return (content,) if isinstance(content, str) else content or ()

    def texts(
        self,
        descriptions: Mapping[str, ClassDescriptions] | None,
        class_names: Sequence[str],
        template: str = DESCRIPTION,
    ) -> list[list[str]]:
        """Return the k texts p_{c,j} that represent each of C classes.

        Args:
            descriptions: descriptions by class; None if the style does not need them.
            class_names: the classes, in the order of their labels; underscores become blanks.
            template: format of a text with {label} and {description}, for description styles.

        Raises:
            UserError: if a required description is missing, or the template is invalid.

        Paper: FedTSP Eq. (3).
        """
        if not self.field:
            labels = [display_name(name) for name in class_names]
            return [[form.format(label=label) for form in self.templates] for label in labels]
        _check_template(template)
        if descriptions is None:
            raise UserError(
                f"text.style={self.name} needs text.descriptions: a shipped name "
                f"({', '.join(shipped_names())}) or a JSON file; or set text.style=handcrafted"
            )
        texts = []
        for name in class_names:
            entry = descriptions[name]
            selected = self.select(entry)
            if not selected:
                raise UserError(
                    f'text.descriptions: text.style={self.name} needs "{self.field}", which is '
                    f"missing or too short for class '{name}'"
                )
            label = entry.label
            texts.append([template.format(label=label, description=text) for text in selected])
        return texts


styles: Registry[type[TextStyle]] = Registry("text style", "fedray.language.styles")


def class_texts(
    style: TextStyle,
    class_names: Sequence[str],
    descriptions: str | None = None,
    template: str = DESCRIPTION,
) -> list[list[str]]:
    """Return the k texts of each class; read descriptions only if the style needs them.

    `descriptions` is the name of a shipped file or the path of a JSON file.

    Raises:
        UserError: as `load_descriptions` and `TextStyle.texts`.
    """
    is_read = descriptions is not None and style.field
    described = load_descriptions(str(descriptions), class_names) if is_read else None
    return style.texts(described, class_names, template)


@styles.add
class Fine(TextStyle):
    """Sentences about a class's appearance, one per text (k = 3)."""

    name, paper, field = "fine", "FedTSP, Eq. (3)", "Fine-grained Descriptions"
    count: int | None = Field(None, ge=1, le=MOST_TEXTS)
    """k, the number of sentences to use per class, the first ones; None: all (FedTSP: 3)."""

    def select(self, entry: ClassDescriptions) -> tuple[str, ...]:
        count = self.count or len(entry.fine)
        return entry.fine[:count] if len(entry.fine) >= count else ()


@styles.add
class Short(TextStyle):
    """One phrase about a class's appearance."""

    name, paper, field = "short", "FedTSP, Fig. 5", "Short Description"


@styles.add
class Long(TextStyle):
    """A paragraph about a class's appearance."""

    name, paper, field = "long", "FedTSP, Fig. 5", "Long Description"


@styles.add
class Handcrafted(TextStyle):
    """The text "A photo of a {label}.", without a description."""

    name, paper = "handcrafted", "FedTSP, Table 4 and Fig. 5"
    templates = ("A photo of a {label}.",)


@styles.add
class Plain(TextStyle):
    """The text "a photo of a {label}", in lower case and without a full stop."""

    name, paper, templates = "plain", "FedGLCL, official code", ("a photo of a {label}",)


@styles.add
class Ensemble(TextStyle):
    """CLIP's 80 templates and five more around the class's name, averaged (k = 85)."""

    name, paper, templates = "ensemble", "FedGLCL, Table 9", ENSEMBLE


@styles.add
class Name(TextStyle):
    """The class's name alone."""

    name, paper, templates = "name", "FedGLCL, Table 9", ("{label}",)


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
