"""Which files below a folder of data are images, and which folders are classes and splits."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from fedray.base.errors import UserError, one_line
from fedray.data.imageset import TEST, TRAIN, VALIDATION

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), TEST),
}
"""The field's words for splits; the Hugging Face hub uses the same."""
_LITTER = {"__macosx", "@eadir", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "lost+found"}
"""Names that operating systems add; they are skipped like names that begin with a dot."""
_MOST_NAMED = 3


def composed(text: str) -> str:
    """Return a name in Unicode's composed form (NFC); macOS decomposes letters such as é."""
    return unicodedata.normalize("NFC", text)


def is_visible(name: str) -> bool:
    """Return False for hidden names and for files that operating systems add."""
    return not name.startswith(".") and name.lower() not in _LITTER


def is_image(name: str) -> bool:
    """Return True for a visible name with the suffix of an image."""
    return is_visible(name) and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def split_of(name: str, where: Path) -> int | None:
    """Return TRAIN, VALIDATION or TEST if a name has a word for this split; None without a word.

    Words are separated by anything but letters, or by a capital letter: `test` is a word of
    `flowers_test.parquet`, `data.test.parquet`, `test-00000-of-00002.parquet`, `test2017` and
    `flowersTest`, but not of `latest`. `testset` and `testdata` count as `test`.

    Raises:
        UserError: if the name has words for different splits.
    """
    words = re.split(r"[\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    stems = (re.sub("(set|data|images|split)$", "", word.lower()) for word in words)
    splits = {SPLIT_WORDS[stem] for stem in stems if stem in SPLIT_WORDS}
    if len(splits) > 1:
        raise UserError(f"{where}: the name has words for different splits; rename it")
    return next(iter(splits), None)


def folders_of(parent: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones.

    Raises:
        OSError: if a link leads nowhere.
    """
    entries = sorted(path for path in parent.iterdir() if is_visible(path.name))
    return [path for path in entries if S_ISDIR(path.stat().st_mode)]


def has_images(folder: Path) -> bool:
    """Return True if there are images directly in a folder."""
    return any(map(is_image, os.listdir(folder)))


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder, sorted; raise a UserError if there is none."""
    images = [folder / name for name in sorted(os.listdir(folder)) if is_image(name)]
    if not images:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder} contains no image ({suffixes}); fill or remove it")
    return images


def is_split(folder: Path) -> bool:
    """Return True if a folder is named after a split, and holds folders: those of the classes."""
    return split_of(folder.name, folder) is not None and bool(folders_of(folder))


def split_folders(root: Path) -> list[tuple[int, Path]]:
    """Return the folders that hold class folders, each with its split; without one, `root`.

    Raises:
        UserError: if there is no class folder, or test images stand beside classes, where they
            would be a class.
    """
    folders = folders_of(root)
    if splits := list(filter(is_split, folders)):
        return sorted((split_of(folder.name, folder) or TRAIN, folder) for folder in splits)
    if not folders:
        raise UserError(
            f"{root} contains no folder of images; expected <class>/<image> or "
            "train/<class>/<image> below it"
        )
    for folder in folders:
        if SPLIT_WORDS.get(folder.name.lower(), TRAIN) != TRAIN and len(folders) > 1:
            raise UserError(
                f"{folder} is named after a split but holds no class folder; expected "
                f"{folder.name}/<class>/<image>; rename or move it if it is no split"
            )
    return [(TRAIN, root)]


def files_below(root: Path) -> list[Path]:
    """Return every visible file below a folder, sorted in each folder; links to folders stay."""
    found = list[Path]()
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(filter(is_visible, subfolders))
        found += [Path(folder, name) for name in sorted(filter(is_visible, files))]
    return found


def status_of(path: Path) -> os.stat_result:
    """Return the status of a regular file; opening a named pipe, for example, would block.

    Raises:
        UserError: if it is anything else.
        OSError: if it is missing.
    """
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file; remove it")
    return status


def unread(root: Path, read: Collection[Path]) -> str:
    """Return "57 files not read, such as notes.txt" about a folder, or "" if all are read."""
    known = {os.fspath(path) for path in read}
    left = [path for path in files_below(root) if os.fspath(path) not in known]
    if not left:
        return ""
    some = ", ".join(path.relative_to(root).as_posix() for path in left[:_MOST_NAMED])
    such = f", such as {some}" if len(left) > _MOST_NAMED else f": {some}"
    return one_line(f"{len(left):,} file{'s' * (len(left) > 1)} not read{such}")
