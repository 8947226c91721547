"""new_source: bars, drawn here. Replace the drawing by reading your files.

    fedray run fedavg_digits --plugin new_source.py data.source=new_source

Folders of images with one folder a class need no source: data.source=image_folder reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.data.imageset import TRAIN, ImageSet
from fedray.data.sources import Source, sources


@sources.add  # under `name`, for `data.source=new_source`
class NewSource(Source):
    """Bars that lie, stand or cross, in noise."""

    name = "new_source"

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """The folder of the data. Without this method it is `data.root`, which has to be there."""
        del root, download
        return Path(__file__).parent

    def files(self, root: Path) -> list[Path]:
        """Every file that is read, so that images are decoded anew when one has changed."""
        del root
        return [Path(__file__)]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """All images and labels; called once per node.

        Pixels are uint8 [n, channels, H, W], labels int64 [n]. `origin` says TRAIN or TEST of each
        image; it counts with data.test=official.
        """
        del root
        count, size = 600, image_size or 16
        random = np.random.default_rng(0)
        labels = np.arange(count) % 3
        pixels = random.integers(0, 100, (count, channels or 1, size, size), dtype=np.uint8)
        middle = random.integers(size // 4, 3 * size // 4, count)
        for image, label, place in zip(pixels, labels, middle, strict=True):
            if label != 1:
                image[:, place, :] += 100
            if label != 0:
                image[:, :, place] += 100
        origin = np.full(count, TRAIN, np.int8)
        names = ("a bar that lies", "a bar that stands", "a cross")
        return ImageSet(self.name, pixels, labels.astype(np.int64), names, origin)
