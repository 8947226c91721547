"""docs/privacy.md: what is claimed, and what each method shows to whom, from what it declares."""

from __future__ import annotations

from typing import NamedTuple

from _build.templates import render
from fedray.core import Algorithm, Payload, PayloadTypes, algorithms
from fedray.core.privacy import COVERS, EXEMPT_KINDS
from fedray.runtime.privacy import ALWAYS_EXEMPT


class Seen(NamedTuple):
    """What a method shows."""

    uploads: PayloadTypes
    downloads: PayloadTypes
    modes: str


def privacy_page() -> str:
    """Return the page; methods that show the same share a section."""
    sections: dict[Seen, list[str]] = {}
    for method in algorithms.entries():
        seen = Seen(method.uploads, method.downloads, _modes(method))
        sections.setdefault(seen, []).append(f"{method.title} (`{method.name}`)")
    return render(
        "privacy",
        **COVERS,
        kinds=" and ".join(f"`{kind}`" for kind in EXEMPT_KINDS),
        always_exempt=ALWAYS_EXEMPT,
        sections=[
            {
                "methods": methods,
                "up": _payloads(seen.uploads),
                "down": _payloads(seen.downloads),
                "modes": seen.modes,
            }
            for seen, methods in sections.items()
        ],
    )


def _payloads(payloads: PayloadTypes) -> list[str]:
    """Return a line for each payload."""
    if not payloads:
        return ["nothing."]
    return [f"{p.reveals()}. `{p.__name__}`: {_fields(p)}." for p in payloads]


def _fields(payload: type[Payload]) -> str:
    """Return the fields with their kinds, the exempt ones in italics."""
    return ", ".join(
        f"*{field.name}*" if field.kind in EXEMPT_KINDS else f"{field.name} ({field.kind})"
        for field in payload.declared()
    )


def _modes(method: type[Algorithm]) -> str:
    """Return which modes of privacy a method can have."""
    if not method.uploads:
        return "nothing is uploaded, so there is nothing to cover"
    kinds = {field.kind for payload in method.uploads for field in payload.declared()}
    if "images" in kinds:
        return "refused, since images travel in the clear"
    choices = {"weights": "uniform"} if "weights" in method.HParams.model_fields else {}
    if method.means_equally(method.HParams.model_validate(choices)):
        return "local; central with `algorithm.weights=uniform`"
    return "local"
