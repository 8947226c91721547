"""Data sets that torchvision can read and fetch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedray.data.decoding import ReadOptions, reason
from fedray.data.imageset import TEST, TRAIN
from fedray.data.sources import Listing, Row, Source, sources, walk
from fedray.errors import UserError
from fedray.files import cache_folder, node_lock


class _TorchVision(Source):
    """Both official splits, the training images first; root is the folder given to torchvision."""

    dataset: ClassVar[str]
    """The class in torchvision.datasets."""
    folder: ClassVar[str]
    """Where it keeps its files, below the root."""
    url: ClassVar[str]
    """Where they come from."""

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`, or the cache when None; fetch what is missing when that is allowed."""
        root = root or cache_folder() / "torchvision"
        if any((root / self.folder).glob("*")):
            return root
        if not download:
            raise UserError(
                f"data.source={self.name}: no files in {root / self.folder}; put torchvision's "
                f"files there (from {self.url}), set data.root to the folder that holds "
                f"{Path(self.folder).parts[0]}, or set data.download=true"
            )
        try:
            with node_lock(root / f".{self.name}"):
                self._open(root, download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"data.source={self.name} could not be fetched into {root}: {error}; "
                f"put its files (from {self.url}) into {root / self.folder} by hand"
            ) from None
        return root

    def download_hint(self, root: Path) -> str:
        return f"; its files are from {self.url}, to be put into {root / self.folder}"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the files that torchvision reads."""
        return list(walk(root / self.folder))

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        try:
            train, test = self._open(root, download=False)
            names = tuple(train.classes)
            rows = [*_rows(train, TRAIN, len(names)), *_rows(test, TEST, len(names))]
        except Exception as error:  # torchvision's readers check little of what they unpack
            raise UserError(
                f"data.source={self.name}: the files in {root / self.folder} are not whole "
                f"({reason(error)}); remove them and set data.download=true"
            ) from None
        return Listing(names, rows)

    def _open(self, root: Path, *, download: bool) -> list[Any]:
        """Return torchvision's data sets for training and test."""
        from torchvision import datasets

        dataset = getattr(datasets, self.dataset)
        return [dataset(root, train=train, download=download) for train in (True, False)]


def _rows(part: Any, origin: int, classes: int) -> Iterator[Row]:
    """Yield the rows of a split; raise ValueError if there are none, or labels do not fit."""
    images, labels = np.asarray(part.data), np.asarray(part.targets, np.int64)
    if not len(images) or labels.shape != (len(images),):
        raise ValueError(f"{len(images)} images and labels of shape {labels.shape}")
    if not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"labels span {labels.min()}..{labels.max()}, but there are {classes} classes"
        )
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        yield Row(image, label, origin, where=f"image {i}")


@sources.add
class Cifar10(_TorchVision):
    """CIFAR-10: 50,000 and 10,000 RGB images of 32x32, 10 classes."""

    name = "torchvision_cifar10"
    dataset = "CIFAR10"
    folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar.html"


@sources.add
class Cifar100(_TorchVision):
    """CIFAR-100: 50,000 and 10,000 RGB images of 32x32, 100 classes."""

    name = "torchvision_cifar100"
    dataset = "CIFAR100"
    folder = "cifar-100-python"
    url = "https://www.cs.toronto.edu/~kriz/cifar.html"


@sources.add
class FashionMnist(_TorchVision):
    """Fashion-MNIST: 60,000 and 10,000 grey images of 28x28, 10 classes."""

    name = "torchvision_fashion_mnist"
    dataset = "FashionMNIST"
    folder = "FashionMNIST/raw"
    url = "https://github.com/zalandoresearch/fashion-mnist"
