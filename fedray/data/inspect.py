"""Which source reads a folder of images, and how large the images are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions, sizes_of
from fedray.data.folders import files_below, folders_of, has_images, is_split
from fedray.data.sources import Source
from fedray.data.sources.coop import is_coop
from fedray.data.sources.torchvision import torchvision_source


def source_for(root: Path) -> str:
    """Return the `data.source` that reads a folder: parquet, coop, domain_folder, ....

    Raises:
        UserError: if the folder does not exist.
        OSError: if it cannot be listed.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; name the folder of your images")
    if any(path.suffix == ".parquet" for path in files_below(root)):
        return "parquet"
    if is_coop(root):
        return "coop"
    if (torchvision := torchvision_source(root)) is not None:
        return torchvision
    folders = folders_of(root)
    is_flat = any(map(has_images, folders)) or any(map(is_split, folders))
    return "image_folder" if is_flat or not any(map(folders_of, folders)) else "domain_folder"


def image_sizes(source: Source, root: Path, options: ReadOptions) -> Counter[tuple[int, int]]:
    """Decode the images that a run would read, and count those of each (width, height).

    Raises:
        UserError: as `Source.read`; OSError: if a file cannot be read.
    """
    listing = source.chosen(root, options)
    names = [row.name(root) for row in listing.rows]
    return sizes_of((row.image for row in listing.rows), names.__getitem__)
