"""new_source: bars, drawn here. Replace the drawing by reading your files.

    fedray run fedavg_digits --plugin new_source.py data.source=new_source

Folders of images with one folder a class need no source: data.source=image_folder reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.plugin import TRAIN, Listing, ReadOptions, Row, Source, sources


@sources.add  # under `name`, for `data.source=new_source`
class NewSource(Source):
    """Bars that lie, stand or cross, in noise."""

    name = "new_source"

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder of the data. Without this method it is `data.root`."""
        del root, download
        return Path(__file__).parent

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return every file that is read, so that images are decoded again when one has changed.

        Without this method: the files of the rows, for a source whose images are files.
        """
        del options
        return [root / Path(__file__).name]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the class names, and a row per image: its file, bytes or pixels, its label.

        A row may also hold its split (TRAIN or TEST, which counts with data.test=official), its
        domain and its mask.
        """
        del root
        size = options.image_size or 16
        random = np.random.default_rng(0)
        rows = []
        for number in range(600):
            pixels = random.integers(0, 100, (size, size), dtype=np.uint8)
            place = random.integers(size // 4, 3 * size // 4)
            label = number % 3
            if label != 1:
                pixels[place, :] += 100
            if label != 0:
                pixels[:, place] += 100
            rows.append(Row(pixels, label, TRAIN, where=f"image {number}"))
        return Listing(("a bar that lies", "a bar that stands", "a cross"), rows)
