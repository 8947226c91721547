"""Data sets that torchvision reads and downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock

from fedray.base.errors import UserError, one_line
from fedray.data.decoding import ReadOptions
from fedray.data.folders import files_below
from fedray.data.imageset import TEST, TRAIN
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import cache_folder


class _TorchVision(Source):
    """Both official splits, training images first; root is torchvision's `root`."""

    dataset: ClassVar[str]
    """The class in torchvision.datasets."""
    folder: ClassVar[str]
    """Folder of the data set's files, below the root."""

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`, or the cache if None; download missing files if that is allowed."""
        root = root or cache_folder() / "torchvision"
        if any((root / self.folder).glob("*")):
            return root
        if not download:
            raise UserError(
                f"data.source={self.name}: no files in {root / self.folder}; copy torchvision's "
                "files there, or set data.download=true"
            )
        with self._readable(root):
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{self.name}.lock"):
                self._open(root, download=True)
        return root

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the files that torchvision reads."""
        return files_below(root / self.folder)

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        with self._readable(root):
            parts = self._open(root, download=False)
            rows = [
                Row(np.asarray(image), int(label), origin, where=f"image {i}")
                for origin, part in zip((TRAIN, TEST), parts, strict=True)
                for i, (image, label) in enumerate(zip(part.data, part.targets, strict=True))
            ]
            if not all(map(len, parts)):
                raise ValueError("a split has no images")
        return Listing(tuple(parts[0].classes), rows)

    @contextmanager
    def _readable(self, root: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # torchvision's readers hardly check their input
            raise UserError(
                f"data.source={self.name}: {root / self.folder} is incomplete or out of reach "
                f"({one_line(error)}); get the files again"
            ) from None

    def _open(self, root: Path, *, download: bool) -> list[Any]:
        """Return torchvision's training and test data sets."""
        from torchvision import datasets

        dataset = getattr(datasets, self.dataset)
        return [dataset(root, train=train, download=download) for train in (True, False)]


@sources.add
class Cifar10(_TorchVision):
    """CIFAR-10: 50,000 and 10,000 RGB images of 32x32, 10 classes."""

    name = "torchvision_cifar10"
    dataset = "CIFAR10"
    folder = "cifar-10-batches-py"


@sources.add
class Cifar100(_TorchVision):
    """CIFAR-100: 50,000 and 10,000 RGB images of 32x32, 100 classes."""

    name = "torchvision_cifar100"
    dataset = "CIFAR100"
    folder = "cifar-100-python"


@sources.add
class FashionMnist(_TorchVision):
    """Fashion-MNIST: 60,000 and 10,000 grey images of 28x28, 10 classes."""

    name = "torchvision_fashion_mnist"
    dataset = "FashionMNIST"
    folder = "FashionMNIST/raw"


def torchvision_source(root: Path) -> str | None:
    """Return the name of the source whose files lie below a folder; None if there are none."""
    for name in sources.names():
        source = sources.get(name)
        if issubclass(source, _TorchVision) and any((root / source.folder).glob("*")):
            return name
    return None
