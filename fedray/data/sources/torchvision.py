"""Data sets that torchvision can read and fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedray.data.cache import cache_folder
from fedray.data.decoding import decode
from fedray.data.imageset import TEST, TRAIN, ImageSet
from fedray.data.sources import Source, sources
from fedray.errors import UserError


class _TorchVision(Source):
    """Both official splits, the training images first; root is the folder given to torchvision."""

    dataset: ClassVar[str]
    """The class in torchvision.datasets."""
    folder: ClassVar[str]
    """Where it keeps its files, below the root."""

    def locate(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`, or the cache when None; fetch what is missing when that is allowed.

        Raises:
            UserError: when the files are missing and may not, or cannot, be fetched.
        """
        root = root or cache_folder() / "torchvision"
        if self._present(root):
            return root
        if not download:
            raise UserError(
                f"data.source={self.name}: no files in {root / self.folder}; put torchvision's "
                "files there, set data.root to the folder that holds "
                f"{Path(self.folder).parts[0]}, or set data.download=true"
            )
        from filelock import FileLock

        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{self.name}.lock"):
                for train in (True, False):
                    self._open(root, train=train, download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"data.source={self.name} could not be fetched into {root}: {error}; "
                f"put its files into {root / self.folder} by hand"
            ) from None
        return root

    def files(self, root: Path) -> list[Path]:
        """The files that torchvision reads."""
        return sorted(path for path in (root / self.folder).rglob("*") if path.is_file())

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Read both splits.

        Raises:
            UserError: when the files are not whole.
        """
        try:
            parts = [self._open(root, train=train, download=False) for train in (True, False)]
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise UserError(
                f"data.source={self.name}: the files in {root / self.folder} are not whole "
                f"({error}); remove them and set data.download=true"
            ) from None
        pixels = np.concatenate([np.asarray(part.data) for part in parts])
        images = decode(
            list(pixels), lambda i: f"image {i}", image_size=image_size, channels=channels
        )
        return ImageSet(
            source=self.name,
            images=images,
            labels=np.concatenate([np.asarray(part.targets, np.int64) for part in parts]),
            class_names=tuple(parts[0].classes),
            origin=np.repeat(np.array([TRAIN, TEST], np.int8), [len(part.data) for part in parts]),
        )

    def _present(self, root: Path) -> bool:
        return any((root / self.folder).glob("*"))

    def _open(self, root: Path, *, train: bool, download: bool) -> Any:
        from torchvision import datasets

        return getattr(datasets, self.dataset)(root, train=train, download=download)


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
