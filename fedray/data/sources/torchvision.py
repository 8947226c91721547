"""Data sets that torchvision reads and downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions, decoding_reason
from fedray.data.folders import files_below
from fedray.data.imageset import TEST, TRAIN
from fedray.data.known import known
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import cache_folder


class _TorchVision(Source):
    """Both official splits, training images first; root is torchvision's `root`."""

    dataset: ClassVar[str]
    """The class in torchvision.datasets."""
    folder: ClassVar[str]
    """Folder of the data set's files, below the root."""
    set_name: ClassVar[str]
    """The known set."""

    @property
    def url(self) -> str:
        """Return the web page of the files."""
        return known(self.set_name).origin.page

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`, or the cache if None; download missing files if that is allowed."""
        root = root or cache_folder() / "torchvision"
        if any((root / self.folder).glob("*")):
            return root
        if not download:
            raise UserError(
                f"data.source={self.name}: no files in {root / self.folder}; copy torchvision's "
                f"files there (from {self.url}), set data.root to the folder that contains "
                f"{Path(self.folder).parts[0]}, or set data.download=true"
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{self.name}.lock"):
                self._open(root, download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"data.source={self.name} could not be downloaded to {root}: {error}; "
                f"copy its files from {self.url} to {root / self.folder}"
            ) from None
        return root

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the files that torchvision reads."""
        return files_below(root / self.folder)

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        try:
            train, test = self._open(root, download=False)
            names = tuple(train.classes)
            rows = [*_rows(train, TRAIN, len(names)), *_rows(test, TEST, len(names))]
        except Exception as error:  # torchvision's readers hardly check their input
            raise UserError(
                f"data.source={self.name}: the files in {root / self.folder} are incomplete "
                f"({decoding_reason(error)}); complete them, or remove them and set "
                "data.download=true"
            ) from None
        return Listing(names, rows)

    def _open(self, root: Path, *, download: bool) -> list[Any]:
        """Return torchvision's training and test data sets."""
        from torchvision import datasets

        dataset = getattr(datasets, self.dataset)
        return [dataset(root, train=train, download=download) for train in (True, False)]


def _rows(part: Any, origin: int, classes: int) -> Iterator[Row]:
    """Yield the rows of a split; raise ValueError if it is empty, or labels are invalid."""
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
    set_name = "cifar10"


@sources.add
class Cifar100(_TorchVision):
    """CIFAR-100: 50,000 and 10,000 RGB images of 32x32, 100 classes."""

    name = "torchvision_cifar100"
    dataset = "CIFAR100"
    folder = "cifar-100-python"
    set_name = "cifar100"


@sources.add
class FashionMnist(_TorchVision):
    """Fashion-MNIST: 60,000 and 10,000 grey images of 28x28, 10 classes."""

    name = "torchvision_fashion_mnist"
    dataset = "FashionMNIST"
    folder = "FashionMNIST/raw"
    set_name = "fashion_mnist"


def torchvision_source(root: Path) -> str | None:
    """Return the name of the source whose files lie below a folder; None if there are none."""
    for name in sources.names():
        source = sources.get(name)
        if issubclass(source, _TorchVision) and any((root / source.folder).glob("*")):
            return name
    return None
