"""Data sets that torchvision can read and, all but one, fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.data.decoding import Encoded, decode
from fedray.data.imageset import TEST, TRAIN, VALIDATION, ImageSet
from fedray.data.reading import walk
from fedray.data.sources import Source, sources
from fedray.data.sources.coop import CARS_URL
from fedray.errors import UserError
from fedray.files import cache_folder, node_lock

OfficialSplits: TypeAlias = Mapping[int, Mapping[str, Any]]
"""For each official split, the arguments with which torchvision reads it."""
Rows: TypeAlias = tuple[Sequence[Encoded], NDArray[np.int64]]
"""Images and their labels."""

_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_ONE: OfficialSplits = {TRAIN: {}}
_TWO: OfficialSplits = {TRAIN: {"split": "train"}, TEST: {"split": "test"}}
_THREE: OfficialSplits = {**_TWO, VALIDATION: {"split": "val"}}
_PETS: OfficialSplits = {TRAIN: {"split": "trainval"}, TEST: {"split": "test"}}


class _TorchVision(Source):
    """All official splits, the training images first; root is the folder given to torchvision."""

    dataset: ClassVar[str]
    """The class in torchvision.datasets."""
    folder: ClassVar[str]
    """Where it keeps its files, below the root."""
    url: ClassVar[str]
    """Where they come from."""
    fetches: ClassVar[bool] = True
    """Whether torchvision can fetch them."""
    splits: ClassVar[OfficialSplits] = {TRAIN: {"train": True}, TEST: {"train": False}}
    """What the class takes to read each official split."""

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`, or the cache when None; fetch what is missing when that is allowed.

        Raises:
            UserError: when the files are missing and may not, or cannot, be fetched.
        """
        root = root or cache_folder() / "torchvision"
        if self._present(root):
            return root
        if not (download and self.fetches):
            more = "or set data.download=true" if self.fetches else "since it cannot be fetched"
            raise UserError(
                f"data.source={self.name}: no files in {root / self.folder}; put torchvision's "
                f"files there (from {self.url}), {'' if self.fetches else 'or '}set data.root to "
                f"the folder that holds {Path(self.folder).parts[0]}, {more}"
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
        """The page of the data set."""
        return f"; its files are from {self.url}, to be put into {root / self.folder}"

    def files(self, root: Path) -> list[Path]:
        """The files that torchvision reads."""
        return sorted(walk(root / self.folder))

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Read all splits.

        Raises:
            UserError: when the files are not whole.
        """
        splits, names = self._read(root)
        encoded = [image for images, _ in splits for image in images]
        labels = [ids for _, ids in splits]

        def where(i: int) -> str:
            image = encoded[i]
            return str(image) if isinstance(image, Path) else f"image {i}"

        return ImageSet(
            source=self.name,
            images=decode(
                encoded,
                where,
                image_size=image_size,
                channels=channels,
                resampling=self.resampling,
            ),
            labels=np.concatenate(labels),
            class_names=names,
            origin=np.repeat(np.array([*self.splits], np.int8), [len(ids) for ids in labels]),
        )

    def _rows(self, part: Any) -> tuple[Sequence[Encoded], Sequence[int]]:
        """The images of a split, and their labels."""
        return list(np.asarray(part.data)), part.targets

    def _names(self, part: Any) -> tuple[str, ...]:
        return tuple(part.classes)

    def _present(self, root: Path) -> bool:
        return any((root / self.folder).glob("*"))

    def _read(self, root: Path) -> tuple[list[Rows], tuple[str, ...]]:
        """The images and labels of every split, and the classes' names.

        Raises:
            UserError: when the files are not whole.
        """
        try:
            parts = self._open(root, download=False)
            names = self._names(parts[0])
            return [_checked(*self._rows(part), len(names)) for part in parts], names
        except Exception as error:  # torchvision's readers check little of what they unpack
            anew = "set data.download=true" if self.fetches else f"get them from {self.url}"
            raise UserError(
                f"data.source={self.name}: the files in {root / self.folder} are not whole "
                f"({_reason(error)}); remove them and {anew}"
            ) from None

    def _open(self, root: Path, *, download: bool) -> list[Any]:
        """One data set of torchvision's for every split."""
        from torchvision import datasets

        dataset = getattr(datasets, self.dataset)
        return [dataset(root, **split, download=download) for split in self.splits.values()]


def _checked(images: Sequence[Encoded], labels: Sequence[int], classes: int) -> Rows:
    """The rows of a split.

    Raises:
        ValueError: when there are none, or the labels do not fit.
    """
    ids = np.asarray(labels, np.int64)
    if not len(images) or ids.shape != (len(images),):
        raise ValueError(f"{len(images)} images and labels of shape {ids.shape}")
    if not 0 <= ids.min() <= ids.max() < classes:
        raise ValueError(f"labels span {ids.min()}..{ids.max()}, but there are {classes} classes")
    return images, ids


def _reason(error: Exception) -> str:
    """An error's message on one line; its class's name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class _Files(_TorchVision):
    """A data set of image files, scaled bicubically as CLIP's preprocessing does.

    Class names are torchvision's, with spaces for underscores; those that prompt methods are
    compared with, and their splits, are CoOp's: data.source=coop.
    """

    resampling = "bicubic"

    def paths(self, root: Path) -> list[str]:
        """Each image's path below the set's folder."""
        found = [image for images, _ in self._read(root)[0] for image in images]
        return [Path(str(path)).relative_to(root / self.folder).as_posix() for path in found]

    def _rows(self, part: Any) -> tuple[Sequence[Encoded], Sequence[int]]:
        part.loader = Path  # torchvision then gives the files, which are decoded later
        rows = [part[i] for i in range(len(part))]
        return [path for path, _ in rows], [label for _, label in rows]

    def _names(self, part: Any) -> tuple[str, ...]:
        return tuple(name.replace("_", " ") for name in part.classes)


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


@sources.add
class OxfordPets(_Files):
    """Oxford-IIIT Pet: 3,680 and 3,669 images, 37 classes; trainval is for training."""

    name = "torchvision_oxford_iiit_pet"
    dataset = "OxfordIIITPet"
    folder = "oxford-iiit-pet"
    url = f"{_VGG}/pets/"
    splits = _PETS

    def _rows(self, part: Any) -> tuple[Sequence[Encoded], Sequence[int]]:
        return part._images, part._labels  # it takes no loader


@sources.add
class Flowers102(_Files):
    """Flowers102: 1,020, 1,020 (validation) and 6,149 images, 102 classes."""

    name = "torchvision_flowers102"
    dataset = "Flowers102"
    folder = "flowers-102"
    url = f"{_VGG}/flowers/102/"
    splits = _THREE


@sources.add
class Dtd(_Files):
    """Describable Textures, partition 1: three times 1,880 images, 47 classes."""

    name = "torchvision_dtd"
    dataset = "DTD"
    folder = "dtd/dtd"
    url = f"{_VGG}/dtd/"
    splits = _THREE


@sources.add
class Caltech101(_Files):
    """Caltech101: 8,677 images, 101 classes, Faces and Faces_easy both.

    torchvision knows no split of it: set data.test=local, data.split, or data.source=coop.
    """

    name = "torchvision_caltech101"
    dataset = "Caltech101"
    folder = "caltech101/101_ObjectCategories"
    url = "https://data.caltech.edu/records/mzrjq-6wc02"
    splits = _ONE

    def _open(self, root: Path, *, download: bool) -> list[Any]:
        ignored = root / self.folder / "BACKGROUND_Google"
        if not (download or ignored.is_dir()):
            raise FileNotFoundError(f"torchvision needs the folder {ignored} too")
        return super()._open(root, download=download)

    def _rows(self, part: Any) -> tuple[Sequence[Encoded], Sequence[int]]:
        top = Path(part.root) / Path(self.folder).name
        rows = zip(part.y, part.index, strict=True)
        return [top / part.categories[y] / f"image_{i:04d}.jpg" for y, i in rows], part.y

    def _names(self, part: Any) -> tuple[str, ...]:
        return tuple(name.replace("_", " ") for name in part.categories)


@sources.add
class Food101(_Files):
    """Food-101: 75,750 and 25,250 images, 101 classes."""

    name = "torchvision_food101"
    dataset = "Food101"
    folder = "food-101"
    url = "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/"
    splits = _TWO


@sources.add
class StanfordCars(_Files):
    """Stanford Cars: 8,144 and 8,041 images, 196 classes."""

    name = "torchvision_stanford_cars"
    dataset = "StanfordCars"
    folder = "stanford_cars"
    url = CARS_URL
    fetches = False
    splits = _TWO


@sources.add
class FgvcAircraft(_Files):
    """FGVC Aircraft: 3,334, 3,333 (validation) and 3,333 images, 100 variants."""

    name = "torchvision_fgvc_aircraft"
    dataset = "FGVCAircraft"
    folder = "fgvc-aircraft-2013b"
    url = f"{_VGG}/fgvc-aircraft/"
    splits = _THREE


@sources.add
class Sun397(_Files):
    """SUN397: 108,754 images of 397 scenes; "outdoor church" is its church/outdoor.

    torchvision knows no split of it: set data.test=local, data.split, or data.source=coop.
    """

    name = "torchvision_sun397"
    dataset = "SUN397"
    folder = "SUN397"
    url = "http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz"
    splits = _ONE

    def _rows(self, part: Any) -> tuple[Sequence[Encoded], Sequence[int]]:
        images, labels = super()._rows(part)
        order = sorted(range(len(labels)), key=lambda i: str(images[i]))  # torchvision's varies
        return [images[i] for i in order], [labels[i] for i in order]

    def _names(self, part: Any) -> tuple[str, ...]:
        return tuple(" ".join(reversed(name.split("/"))) for name in super()._names(part))


@sources.add
class EuroSat(_Files):
    """EuroSAT in RGB: 27,000 images of 64x64, 10 classes.

    torchvision knows no split of it: set data.test=local, data.split, or data.source=coop.
    """

    name = "torchvision_eurosat"
    dataset = "EuroSAT"
    folder = "eurosat/2750"
    url = "https://github.com/phelber/eurosat"
    splits = _ONE
