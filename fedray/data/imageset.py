"""A decoded, labelled set of images: what every source returns and every partition divides."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.storage.cache import Arrays


class OfficialSplit(IntEnum):
    """The official split of an image.

    VALIDATION images are neither partitioned nor tested on; only few-shot protocols use them. If a
    source has no test split, its validation images are TEST.
    """

    TRAIN, TEST, VALIDATION = range(3)


TRAIN, TEST, VALIDATION = OfficialSplit


@dataclass(frozen=True, eq=False)
class Domains:
    """The domain (amazon, webcam, ...) of every image.

    Attributes:
        names: names of the domains.
        ids: int16 [n], each image's position in `names`.
    """

    names: tuple[str, ...]
    ids: NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels; the arrays are read-only and may be mapped from disk.

    Attributes:
        source: the name of the data source.
        images: uint8 [n, channels, H, W], 0..255.
        labels: int64 [n], positions in `class_names`.
        class_names: C names; a class may have no image.
        origin: int8 [n], the official split: TRAIN, TEST or VALIDATION. All TRAIN if the source
            has no official split.
        domains: each image's domain; None if the source has no domains.
        masks: uint8 [n, H, W], every pixel's class for dense prediction; None if the source has no
            masks. Class 0 is the background, and `labels` are the `dominant_classes`.
        sha256: hash of pixels, labels, names, splits and masks; computed if empty.
        about: what was read and what was not, in one line; not part of the hash.
    """

    source: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    origin: NDArray[np.int8]
    domains: Domains | None = None
    masks: NDArray[np.uint8] | None = None
    sha256: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        for array in self._arrays:
            array.flags.writeable = False
        if not self.sha256:
            object.__setattr__(self, "sha256", self._content())

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        domains = None if self.domains is None else self.domains.ids
        arrays = (self.images, self.labels, self.origin, domains, self.masks)
        return [array for array in arrays if array is not None]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of every image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def store(self, making: Arrays) -> None:
        """Save everything but the pixels, which are in the array from `making.allocate` already."""
        making.save("labels", self.labels)
        making.save("origin", self.origin)
        if self.domains is not None:
            making.save("domains", self.domains.ids)
        if self.masks is not None:
            making.save("masks", self.masks)
        making.content = {
            "source": self.source,
            "class_names": self.class_names,
            "domains": None if self.domains is None else self.domains.names,
            "sha256": self.sha256,
        }

    @classmethod
    def stored(cls, saved: Arrays) -> ImageSet:
        """Return the image set that `store` saved, with its arrays mapped read-only."""
        content, arrays = saved.content, saved.arrays
        names = content["domains"]
        return cls(
            source=content["source"],
            images=arrays["images"],
            labels=arrays["labels"],
            class_names=tuple(content["class_names"]),
            origin=arrays["origin"],
            domains=None if names is None else Domains(tuple(names), arrays["domains"]),
            masks=arrays.get("masks"),
            sha256=content["sha256"],
        )

    def _content(self) -> str:
        domain_names = None if self.domains is None else self.domains.names
        head = [self.images.shape, self.class_names, domain_names]
        digest = hashlib.sha256(json.dumps(head).encode())
        for array in self._arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def dominant_classes(masks: NDArray[np.uint8], classes: int) -> NDArray[np.int64]:
    """Return the most frequent foreground class of each mask [n, H, W], int64 [n].

    It is 0 if a mask is all background, and the lower one of equally frequent classes.
    """
    flat = masks.reshape(len(masks), -1)
    pixels = np.stack([(flat == c).sum(1) for c in range(1, classes)], 1)
    return np.where(pixels.any(1), pixels.argmax(1) + 1, 0).astype(np.int64)
