"""Public images, which belong to no client: a share of the training images, or another source.

The server and all clients can read them; nobody sends them, and no state holds them. All processes
of a node map one copy from its cache.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, StrictBool

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, DataConfig, Entry, InputFile, default_entry
from fedray.config.registry import Registry
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TRAIN, ImageSet
from fedray.data.partitions import Indices
from fedray.data.sources import load_images


@dataclass(frozen=True, eq=False)
class PublicSet:
    """The public images of a federation.

    Attributes:
        images: the image set that contains them.
        index: their positions in it, int64, sorted.
        is_labelled: whether steps may read their labels.
    """

    images: ImageSet
    index: Indices
    is_labelled: bool

    @property
    def labels(self) -> Indices:
        """Return the labels of all images of the image set; -1 for each if they are unlabelled."""
        unlabelled: Indices = np.broadcast_to(np.int64(-1), len(self.images))
        return self.images.labels if self.is_labelled else unlabelled


class PublicData(Entry, ABC):
    """The choice of public images; its typed parameters are the keys `data.public.*`."""

    def take(self, images: ImageSet, pool: Indices, rng: np.random.Generator) -> PublicSet | None:
        """Return the images that clients give up, of their training images `pool`."""
        return None

    def read(
        self, images: ImageSet, keys: DataConfig, rng: np.random.Generator
    ) -> PublicSet | None:
        """Return the public images that are read from elsewhere; None: there are none.

        Args:
            images: the image set of the clients.
            keys: how the clients' images are read.
            rng: the random stream of the draw.
        """
        return None


publics: Registry[type[PublicData]] = Registry("public data", "fedray.data.public")


@publics.add
class NoPublicData(PublicData):
    """No public images."""

    name = "none"


class LabelledData(PublicData):
    """Public images whose labels may be hidden."""

    labelled: StrictBool = True
    """Whether methods may read the labels; false: every label is -1."""


@publics.add
class PublicShare(LabelledData):
    """A random share of the training images, which clients then lack, in every phase the same."""

    name = "share"

    fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the training images that is public; drawn before `data.imbalance` and
    `data.shots`."""

    def take(self, images: ImageSet, pool: Indices, rng: np.random.Generator) -> PublicSet:
        count = round(self.fraction * len(pool))
        if not 0 < count < len(pool):
            raise UserError(
                f"data.public.fraction={self.fraction:g} makes {count} of {len(pool)} training "
                "images public, but clients and the public need one each; change it"
            )
        return PublicSet(images, np.sort(rng.permutation(pool)[:count]), self.labelled)


@publics.add
class OtherSource(LabelledData):
    """The training images of another source; labelled only if it has the clients' classes."""

    name = "source"

    source: Annotated[Component, Chosen("data source")] = default_entry("digits")
    """The data source, as in `data.source`; its images are scaled to those of the clients."""
    root: InputFile | None = None
    """Folder of the public data. Its content is part of the experiment's identity."""
    samples: int | None = Field(None, ge=1, le=1_000_000_000)
    """Size of a random subset of its training images to use; None uses all."""

    def read(self, images: ImageSet, keys: DataConfig, rng: np.random.Generator) -> PublicSet:
        channels, height, _ = images.shape
        classes = keys.classes if self.labelled else None
        options = ReadOptions(keys.image_size or height, channels, keys.resize, classes)
        root, own = (path and Path(path).resolve() for path in (self.root, keys.root))
        try:
            public = load_images(self.source, root or None, options)
        except UserError as error:
            raise UserError(f"data.public.source={self.source.name}: {error}") from None
        index = np.flatnonzero(public.origin == TRAIN).astype(np.int64, copy=False)
        problem = ""
        if public.sha256 == images.sha256 or (root and root == own):
            problem = "reads the images of the clients; set data.public=share to make some public"
        elif public.shape != images.shape:
            problem = (
                f"has images {list(public.shape)}, and data.source {list(images.shape)}; set "
                "data.image_size, and data.channels if the colours differ"
            )
        elif self.labelled and public.class_names != images.class_names:
            problem = "has other classes than data.source; set data.public.labelled=false"
        elif self.samples is not None and self.samples > len(index):
            problem = f"has {len(index)} training images; lower data.public.samples={self.samples}"
        if problem:
            raise UserError(f"data.public.source={self.source.name} {problem}")
        chosen = np.sort(rng.permutation(index)[: self.samples])
        return PublicSet(public, chosen, self.labelled)
