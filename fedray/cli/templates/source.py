"""new_source: images of bars, drawn in this file. Replace the drawing by reading your files.

    fedray run fedavg_digits --plugin new_source.py data.source=new_source

Folders with one subfolder of images per class need no source of their own: use
data.source=image_folder.
"""

from pathlib import Path

import numpy as np

from fedray.plugin import Listing, OfficialSplit, Row, Source, sources


@sources.add  # registers `name`, for `data.source=new_source`
class NewSource(Source):
    """Horizontal bars, vertical bars and crosses in noise."""

    name = "new_source"

    def find_root(self, root, *, download):
        """Return the folder of the data; by default `data.root`."""
        del root, download
        return Path(__file__).parent

    def files(self, root, options):
        """Return all files that are read; images are decoded again after a file has changed.

        By default, these are the image files of the rows.
        """
        del options
        return [root / Path(__file__).name]

    def listing(self, root, options):
        """Return the class names, and one row per image with its file, bytes or pixels and label.

        A row can also contain its split (OfficialSplit.TRAIN or OfficialSplit.TEST, used with
        data.test=official), a domain and a mask.
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
            rows.append(Row(pixels, label, OfficialSplit.TRAIN, where=f"image {number}"))
        return Listing(("a horizontal bar", "a vertical bar", "a cross"), rows)
