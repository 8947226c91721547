"""Decoded images as arrays of the node's cache: what they are called and how they are kept.

The name follows the names, sizes and times of the images' files, so that an edit of these is
noticed, one that sets the time of modification back included. See `fedray.node_cache`.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedray.data.imageset import Domains, ImageSet
from fedray.errors import UserError
from fedray.node_cache import Arrays, content_key

_FORMAT = 3


def images_key(root: Path, files: Iterable[Path], *options: Any) -> str:
    """Name what would be decoded, without decoding it.

    Args:
        root: the folder that the files' names are relative to, so that it can be moved.
        files: every file that the images and labels are read from, below the root.
        *options: what else changes the images, as JSON.

    Returns:
        32 hex digits over the options, the version of the image library, and the files' relative
        names, sizes and times (of modification, which can be set, and of change, which cannot).

    Raises:
        UserError: when one is no plain file: opening a named pipe, say, waits for ever.
        OSError: when one is not there.
    """
    import PIL

    listed = []
    for path in sorted(files):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is no plain file; remove it")
        name = path.relative_to(root).as_posix()
        listed.append([name, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return content_key(_FORMAT, PIL.__version__, options, listed)


def save_images(images: ImageSet, making: Arrays) -> None:
    """Write an image set, but for the pixels, which `making.allocate` gave the array of."""
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


def image_set(kept: Arrays) -> ImageSet:
    """Return the image set that `save_images` wrote, its arrays mapped read-only."""
    content, arrays = kept.content, kept.arrays
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
