"""The tables of public data sets and weights in docs/own-data.md, from their descriptions."""

from __future__ import annotations

from fedray.data.known import KnownSet, known_sets
from fedray.base.markdown import markdown_table
from fedray.data.downloads import Origin
from fedray.base.units import size_of
from fedray.data.weights import KnownWeights, known_weights


def sets_table() -> str:
    """Return the tables of all known sets and weights."""
    sets = markdown_table(
        (
            "`fedray get`",
            "set",
            "`data.source`",
            "classes",
            "images (train, val, test)",
            "pixels",
            "download",
            "licence",
            "origin",
            "verified by",
        ),
        [_set_row(known) for known in known_sets().values()],
    )
    weights = markdown_table(
        ("`fedray get`", "weights", "size", "licence", "origin"),
        [_weights_row(known) for known in known_weights().values()],
    )
    return f"{sets}\n\n{weights}"


def _set_row(known: KnownSet) -> list[str]:
    images, size = known.images, known.image_size
    counts = (images.train, images.validation, images.test)
    return [
        f"`{known.name}`",
        known.title,
        f"`{known.source}`",
        str(known.class_count),
        " + ".join(f"{count:,}" for count in counts if count),
        "varies" if size is None else f"{size[0]}x{size[1]}",
        _size(known.origin),
        known.origin.licence or "not stated",
        _origin(known.origin),
        _verified(known.origin),
    ]


def _origin(origin: Origin) -> str:
    if origin.hub is None:
        return f"[page]({origin.page})"
    return f"[page]({origin.page}), hub `{origin.hub}`"


def _size(origin: Origin) -> str:
    """Return the size of the files whose size is known."""
    total = sum(file.bytes or 0 for file in origin.files)
    return size_of(total) if total and origin.hub is None else "see the page"


def _verified(origin: Origin) -> str:
    """Return what the downloaded files are compared with; the images are counted in any case."""
    if origin.hub is not None:
        return "the hub's SHA-256"
    known = [file for file in origin.files if file.checksum]
    kinds = sorted({str(file.checksum).partition(":")[0].upper() for file in known})
    if not known:
        return "its content"
    return f"{', '.join(kinds)} of {len(known)} of {len(origin.files)} files"


def _weights_row(known: KnownWeights) -> list[str]:
    return [
        f"`{known.name}`",
        known.title,
        size_of(known.bytes) if known.bytes else "see the page",
        known.origin.licence or "not stated",
        f"`{known.origin.by_hand}`" if known.package else _origin(known.origin),
    ]
