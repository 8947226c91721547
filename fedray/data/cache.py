"""Decoded images in the node's cache: their names, and how they are saved and loaded.

A name depends on the names, sizes and times of the image files, so that an edit is noticed, even
one that restores the time of modification. See `fedray.storage.cache`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedray.data.folders import status_of
from fedray.data.imageset import Domains, ImageSet
from fedray.storage.cache import Arrays, content_key

_FORMAT = 5


def images_key(root: Path, files: Iterable[Path], *options: Any) -> str:
    """Return the cache name of decoded images, without decoding them.

    Args:
        root: the folder that file names are relative to, so that the folder can be moved.
        files: all files, below the root, that images and labels are read from.
        *options: further JSON values that change the images.

    Returns:
        32 hex digits over the options, the version of the image library, and the files' relative
        names, sizes and times (of modification, which can be set, and of change, which cannot).

    Raises:
        UserError: if one is not a regular file; opening a named pipe, for example, would block.
        OSError: if one is missing.
    """
    import PIL

    entries = []
    for path in sorted(files):
        status = status_of(path)
        name = path.relative_to(root).as_posix()
        entries.append([name, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return content_key(_FORMAT, PIL.__version__, options, entries)


def save_images(images: ImageSet, making: Arrays) -> None:
    """Save an image set; its pixels are already in the array from `making.allocate`."""
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


def image_set(saved: Arrays) -> ImageSet:
    """Return the image set that `save_images` saved, with its arrays mapped read-only."""
    content, arrays = saved.content, saved.arrays
    names = content["domains"]
    return ImageSet(
        source=content["source"],
        images=arrays["images"],
        labels=arrays["labels"],
        class_names=tuple(content["class_names"]),
        origin=arrays["origin"],
        domains=None if names is None else Domains(tuple(names), arrays["domains"]),
        masks=arrays.get("masks"),
        sha256=content["sha256"],
    )
