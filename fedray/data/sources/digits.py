"""Handwritten digits from scikit-learn's package: 1797 real 8x8 grey images, no download."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import ImageSet
from fedray.data.sources import Listing, Row, Source, sources

_FILE = "datasets/data/digits.csv.gz"
"""The file below scikit-learn's folder."""
_READ: dict[ReadOptions, ImageSet] = {}
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@sources.add
class Digits(Source):
    """Handwritten digits of scikit-learn: 1,797 grey images of 8x8, 10 classes, no download.

    The test part of UCI's optical digits; values 0..16 become 0..255. The images are decoded in
    memory, which is faster than opening a cache.
    """

    name = "digits"
    reads_root = False
    kept = False

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder of scikit-learn, found without the import, which takes seconds."""
        spec = importlib.util.find_spec("sklearn")
        folder = Path(spec.origin or "").parent if spec is not None else None
        if folder is None or not (folder / _FILE).is_file():
            raise UserError(
                f"data.source=digits needs scikit-learn's file {_FILE}; pip install scikit-learn"
            )
        return folder

    def load(self, root: Path | None, options: ReadOptions, *, download: bool = False) -> ImageSet:
        """Load the images once per process."""
        if options not in _READ:
            _READ[options] = super().load(root, options, download=download)
        return _READ[options]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows of `sklearn.datasets.load_digits`."""
        with gzip.open(root / _FILE, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.int64)
        values, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].tolist()
        pixels = np.rint(values * (255 / 16)).astype(np.uint8)
        rows = zip(pixels, labels, strict=True)
        return Listing(
            _NAMES, [Row(image, n, where=f"digit {i}") for i, (image, n) in enumerate(rows)]
        )
