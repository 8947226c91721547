"""docs/privacy.md: differential privacy, and the payloads that each method declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from _build.templates import render
from fedray.core import Algorithm, Fields, algorithms, takes_equal_mean
from fedray.core.payload import EXEMPT_KINDS


class Payloads(NamedTuple):
    """The payloads of a method as lines of text, and its modes of privacy."""

    up: tuple[str, ...]
    down: tuple[str, ...]
    modes: str


def privacy_page() -> str:
    """Return the page; methods with equal payloads and modes share a section."""
    sections: dict[Payloads, list[str]] = {}
    for method in algorithms.entries():
        up, down = _payloads(method.uploads), _payloads(method.downloads)
        payloads = Payloads(tuple(up), tuple(down), _modes(method))
        sections.setdefault(payloads, []).append(f"{method.title} (`{method.name}`)")
    return render(
        "privacy",
        kinds=" and ".join(f"`{kind}`" for kind in EXEMPT_KINDS),
        sections=[
            {
                "methods": methods,
                "up": payloads.up,
                "down": payloads.down,
                "modes": payloads.modes,
            }
            for payloads, methods in sections.items()
        ],
    )


def _payloads(payloads: Sequence[Fields]) -> list[str]:
    """Return a line of text for each payload."""
    if not payloads:
        return ["nothing."]
    return [f"{p.reveals()}. `{p.place}`: {_fields(p)}." for p in payloads]


def _fields(fields: Fields) -> str:
    """Return the fields of a payload with their kinds; exempt fields are in italics."""
    return ", ".join(
        f"*{name}*" if field.kind in EXEMPT_KINDS else f"{name} ({field.kind})"
        for name, field in fields.items()
    )


def _modes(method: type[Algorithm]) -> str:
    """Return the modes of privacy that a method supports, in words."""
    if not method.uploads:
        return "not needed, since nothing is uploaded"
    kinds = {field.kind for fields in method.uploads for field in fields.values()}
    if "images" in kinds:
        return "refused, since images are sent in the clear"
    choices = {"weights": "uniform"} if "weights" in method.model_fields else {}
    if takes_equal_mean(method.model_validate(choices)):
        return "local; central with `algorithm.weights=uniform`"
    return "local"
