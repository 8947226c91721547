"""Handwritten digits that scikit-learn carries: 1797 real 8x8 grey images, no download."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.data.decoding import decode
from fedray.data.imageset import TRAIN, ImageSet
from fedray.data.sources import Source, sources
from fedray.errors import UserError

_FILE = "datasets/data/digits.csv.gz"
"""Below the folder of scikit-learn."""
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@sources.add
class Digits(Source):
    """Handwritten digits of scikit-learn: 1,797 grey images of 8x8, 10 classes, no download.

    UCI's optical digits, its test part; values 0..16 become 0..255. They are made in memory, faster
    than a cache would open.
    """

    name = "digits"

    def load(
        self,
        root: Path | None = None,
        *,
        image_size: int | None = None,
        channels: int | None = None,
        download: bool = False,
        split: str | None = None,
        verified_since: float = 0.0,
    ) -> ImageSet:
        """Give the images uint8 [1797, 1, 8, 8], or as asked; `root` is not used.

        Raises:
            UserError: for a `split`: the images have no paths.
        """
        del root, download, verified_since
        if split is not None:
            self.paths(Path())
        return self.decode(Path(), image_size=image_size, channels=channels)

    def files(self, root: Path) -> list[Path]:
        """None: the images come with scikit-learn."""
        del root
        return []

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Scale the values and, where asked, the images."""
        del root
        values, labels = _values_and_labels()
        pixels = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        return ImageSet(
            source=self.name,
            images=decode(
                list(pixels), lambda i: f"digit {i}", image_size=image_size, channels=channels
            ),
            labels=labels,
            class_names=_NAMES,
            origin=np.full(len(labels), TRAIN, np.int8),
        )


def _values_and_labels() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of 64 values and their digit, as `sklearn.datasets.load_digits` gives them.

    From the package's file: to import its function takes seconds.

    Raises:
        UserError: when scikit-learn is not installed, or has no such file.
    """
    found = importlib.util.find_spec("sklearn")
    path = Path(found.origin or "").parent / _FILE if found is not None else None
    if path is None or not path.is_file():
        raise UserError(
            f"data.source=digits needs scikit-learn's file {_FILE}; pip install scikit-learn"
        )
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]
