"""The table of public data sets in docs/own-data.md."""

from __future__ import annotations

from _build.templates import render
from fedray.data.known import KnownSet, known_sets

OWN_DATA = "docs/own-data.md"


def sets_table() -> str:
    """Return the table of all known sets."""
    sets = [
        {
            **known.model_dump(include={"name", "title", "folder", "source", "layout"}),
            "content": _content(known),
            "origin": _origin(known),
        }
        for known in known_sets().values()
    ]
    return render("sets", sets=sets)


def _content(known: KnownSet) -> str:
    """Return the number of classes, domains and images of a set, and their size."""
    images = known.images
    splits = {"training": images.train, "validation": images.validation, "test": images.test}
    counts = ", ".join(f"{number:,} {name}" for name, number in splits.items() if number)
    size = f", {known.image_size[0]} x {known.image_size[1]} pixels" if known.image_size else ""
    domains = f" in {len(known.domains)} domains" if known.domains else ""
    return f"{known.class_count} classes{domains}; {counts}{size}"


def _origin(known: KnownSet) -> str:
    """Return links to a set's page and its repository on the hub."""
    page = f"[page]({known.origin.page})"
    return f"{page}, hub `{known.origin.hub}`" if known.origin.hub else page
