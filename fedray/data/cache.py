"""Decoded images exist once per node: written by the first process that needs them, then mapped.

The name of their folder follows the names, sizes and times of the images' files, so that an edit of
these is noticed too, one that sets the time of modification back included. What only reading the
images' files would show (a bad disk, a copy of an older backup under forged times) is asked for by
`verified_since`. See `fedray.node_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.data.imageset import Domains, ImageSet
from fedray.node_cache import Arrays, content_key, kept_arrays

_FORMAT = 3
_making: ContextVar[Arrays | None] = ContextVar("_making", default=None)


def source_key(source: str, root: Path | None, files: Iterable[Path], **options: Any) -> str:
    """Name what a source would decode, without decoding it.

    Args:
        source: the source's name.
        root: the folder that the files' names are relative to, so that it can be moved.
        files: every file that the images and labels are read from.
        **options: what else changes the pixels (image_size, channels).

    Returns:
        "<source>-<32 hex digits>" over the options, the version of the image library, and the
        files' relative names, sizes and times (of modification, which can be set, and of change,
        which cannot).
    """
    import PIL

    listing = []
    for path in sorted(files):
        stat = path.stat()
        name = path.relative_to(root).as_posix() if root is not None else path.name
        listing.append([name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
    key = content_key(_FORMAT, PIL.__version__, source, sorted(options.items()), listing)
    return f"{source}-{key}"


def cached(key: str, load: Callable[[], ImageSet], *, verified_since: float = 0.0) -> ImageSet:
    """Map the images called `key`; the first process on this node decodes them for all.

    Args:
        key: from `source_key`.
        load: decodes the images; called at most once.
        verified_since: images that were last decoded before this time, in seconds since the epoch,
            are decoded again and compared.

    Returns:
        The image set, its arrays mapped read-only.

    Raises:
        UserError: when the cache folder cannot be written, or what `load` raises.
    """

    def make(making: Arrays) -> None:
        token = _making.set(making)
        try:
            images = load()
        finally:
            _making.reset(token)
        _write(images, making)

    return _image_set(kept_arrays("images", key, "decoded images", make, made_since=verified_since))


def allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Give an array for the pixels of a whole image set; its values are yet to be set.

    While `cached` decodes, it maps the file that the images will be read from, so that they need
    not fit into memory and are written once; elsewhere it is memory.

    Raises:
        UserError: when the file cannot be as large as that.
    """
    making = _making.get()
    return np.empty(shape, np.uint8) if making is None else making.allocate("images", shape, "u1")


def _write(images: ImageSet, making: Arrays) -> None:
    """Write what is not there yet."""
    if images.images is not making.arrays.get("images"):
        making.save("images", images.images)
    making.save("labels", images.labels)
    making.save("origin", images.origin)
    if images.domains is not None:
        making.save("domains", images.domains.ids)
    if images.masks is not None:
        making.save("masks", images.masks)
    making.content = {
        "source": images.source,
        "class_names": images.class_names,
        "domains": None if images.domains is None else images.domains.names,
        "sha256": images.sha256,
    }


def _image_set(kept: Arrays) -> ImageSet:
    content, arrays = kept.content, kept.arrays
    domains = None
    if content["domains"] is not None:
        domains = Domains(tuple(content["domains"]), arrays["domains"])
    return ImageSet(
        source=content["source"],
        images=arrays["images"],
        labels=arrays["labels"],
        class_names=tuple(content["class_names"]),
        origin=arrays["origin"],
        domains=domains,
        masks=arrays.get("masks"),
        sha256=content["sha256"],
    )
