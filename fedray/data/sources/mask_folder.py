"""Images with masks: ROOT/<domain>/{train,test}/{images,masks}/*.png, and ROOT/classes.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.folders import folders_of, images_in, split_of
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import read_typed

_Names = Annotated[list[str], Field(min_length=2, max_length=256)]
_EXPECTED = 'expected a list of two to 256 different names, ["background", ...]'


@sources.add
class MaskFolder(Source):
    """Images with masks for dense prediction: ROOT/<domain>/{train,test}/{images,masks}/*.png.

    A mask is a PNG with its image's name; a pixel's value is its class. With two classes, any two
    values are allowed (such as 0 and 255). ROOT/classes.json lists the class names, background
    first. Domains are the folders below the root. An image's label is its dominant class.
    """

    name = "mask_folder"

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images with their masks, ordered by domain, split and name."""
        listed = root / "classes.json"
        names = tuple(read_typed(listed, _Names, "the file", _EXPECTED))
        rows = [
            Row(image, 0, _origin(split), domain.name, mask)
            for domain in folders_of(root)
            for split in folders_of(domain)
            for image, mask in _pairs(split)
        ]
        return Listing(names, rows, lists=(listed,))


def _origin(split: Path) -> int:
    """Return the split that a folder is named after."""
    origin = split_of(split.name, split)
    if origin is None:
        raise UserError(
            f"{split} is not a split; expected {split.parent}/train/images and "
            f"{split.parent}/train/masks, and the same below test: rename or remove it"
        )
    return origin


def _pairs(split: Path) -> Iterator[tuple[Path, Path]]:
    """Yield every image of a split with its mask."""
    for image in images_in(split / "images"):
        mask = split / "masks" / f"{image.stem}.png"
        if not mask.is_file():
            raise UserError(f"{image} has no mask {mask}; add it or remove the image")
        yield image, mask
