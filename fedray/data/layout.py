"""Which files below a folder of data are read: names of splits, class folders, unread files."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
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
_MOST_NAMED = 8
"""Number of unread files and folders that a note names."""
_MOST_OF_FOLDER = 3
"""Number of unread files of a folder that a note names; it counts more of them."""


def composed(text: str) -> str:
    """Return a name in Unicode's composed form (NFC); macOS decomposes letters such as é."""
    return unicodedata.normalize("NFC", text)


def is_visible(name: str) -> bool:
    """Return False for hidden names and for files that operating systems add."""
    return not name.startswith(".") and name.lower() not in _LITTER


def split_words(name: str) -> dict[str, int]:
    """Return the words for splits in the name of a file or folder, in lower case, with the splits.

    Words are separated by anything but letters, or by a capital letter: `test` is a word of
    `flowers_test.parquet`, `data.test.parquet`, `test-00000-of-00002.parquet`, `test2017` and
    `flowersTest`, but not of `latest`. `testset` and `testdata` count as `test`.
    """
    words = re.split(r"[\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    stems = (re.sub("(set|data|images|split)$", "", word.lower()) for word in words)
    return {stem: SPLIT_WORDS[stem] for stem in stems if stem in SPLIT_WORDS}


def split_of(name: str, where: Path) -> int | None:
    """Return TRAIN, VALIDATION or TEST if a name has a word for this split; None without a word.

    Args:
        name: the name of a file or folder, or several, joined by slashes.
        where: the path of the file or folder, for the message.

    Raises:
        UserError: if the name has words for different splits.
    """
    words = split_words(name)
    if len(set(words.values())) > 1:
        raise UserError(
            f"{where}: the name has words for different splits, {' and '.join(words)}; rename it, "
            "so that it says train, validation or test"
        )
    return next(iter(words.values()), None)


def with_official_test(origin: int, origins: Iterable[int]) -> int:
    """Return TEST for VALIDATION if a source has no test split, else the origin itself.

    Args:
        origin: the split that a file or folder is named after.
        origins: the splits of the whole source.
    """
    return TEST if origin == VALIDATION and TEST not in origins else origin


def validation_note(named: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Return a sentence about the official validation images, if there are any.

    Args:
        named: the split and the name of every file or folder that is named after a split.
    """
    by_origin = dict(sorted(named, reverse=True))
    if VALIDATION not in by_origin:
        return ()
    name = by_origin[VALIDATION]
    if TEST not in by_origin:
        return (f"there is no test split: the validation images ({name}) are the official test",)
    return (
        f"the official validation images ({name}) are neither trained nor tested on, only few-shot "
        "protocols use them; move them to the training images to train on them",
    )


def folders_of(parent: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones.

    Raises:
        OSError: if a link leads nowhere.
    """
    entries = sorted(path for path in parent.iterdir() if is_visible(path.name))
    return [path for path in entries if S_ISDIR(path.stat().st_mode)]


def is_image(name: str) -> bool:
    """Return True for a visible name with the suffix of an image."""
    return is_visible(name) and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def images_in(folder: Path, remedy: str) -> list[Path]:
    """Return the images in a folder, sorted.

    Raises:
        UserError: if there is none; `remedy` ends the message.
    """
    images = sorted(path for path in folder.iterdir() if is_image(path.name))
    if images:
        return images
    suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
    deeper = next((path for path in walk(folder, strict=False) if is_image(path.name)), None)
    hint = "" if deeper is None else f" but its folder {deeper.parent.relative_to(folder)} does;"
    raise UserError(f"{folder} contains no image ({suffixes});{hint} {remedy}")


PACKED = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
"""The suffixes of archives and compressed files."""


def packed_hint(root: Path, archives: Collection[str] = ()) -> str:
    """Return a remark on an archive or compressed file in a folder; "" if there is none.

    Args:
        root: the folder, which may be missing.
        archives: the names that count; all if empty.
    """
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    packed = [name for name in names if name.lower().endswith(PACKED)]
    named = [name for name in packed if name in archives or not archives]
    return f", but {named[0]} is packed: unpack it there" if named else ""


def other_files_hint(root: Path) -> str:
    """Return a remark on what a folder holds instead of what a source reads; "" without one."""
    if packed := packed_hint(root):
        return packed
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    if any(name.endswith(".arrow") for name in names) or "dataset_dict.json" in names:
        return (
            ", but files of datasets' save_to_disk, which are no parquet files: write some with "
            "load_from_disk(FOLDER)[SPLIT].to_parquet('SPLIT.parquet')"
        )
    if any(name.endswith(".parquet") for name in names):
        return ", but parquet files: set data.source=parquet"
    files = walk(root, strict=False) if root.is_dir() else iter(())
    if any(is_image(path.name) and path.parent != root for path in files):
        return ", but folders of images: set data.source=image_folder or domain_folder"
    return ""


def split_folders(root: Path) -> list[tuple[int, Path]]:
    """Return the folders that hold class folders, each with its split; `root` itself is training.

    A folder is a split if it has a word for one and holds folders. Other folders beside splits must
    be without images, because their images could belong to any split.

    Raises:
        UserError: if it is unclear which folders are splits.
    """
    folders = folders_of(root)
    splits = [folder for folder in folders if is_split(folder)]
    if not splits:
        _check_classes(root, folders)
        return [(TRAIN, root)]
    for folder in folders:
        if folder not in splits and not split_words(folder.name) and _holds_images(folder):
            raise UserError(
                f"{root} has the split {splits[0].name}, and beside it {folder.name} with images, "
                "whose name is not that of a split; rename it (train, validation or test), or move "
                "it"
            )
    named = [(split_of(folder.name, folder), folder) for folder in splits]
    return sorted((origin, folder) for origin, folder in named if origin is not None)


def is_split(folder: Path) -> bool:
    """Return True if a folder has a word for a split, and holds class folders."""
    if not split_words(folder.name) or not folders_of(folder):
        return False
    is_alone = folder.name.lower() in SPLIT_WORDS
    return is_alone or not any(is_image(path.name) for path in folder.iterdir())


def _check_classes(root: Path, folders: list[Path]) -> None:
    """Refuse folders of held-out images beside class folders, where they would be a class."""
    rests = {_without_words(path.name) for path in folders if _origins(path) == {TRAIN}}
    for folder in folders:
        is_alone = folder.name.lower() in SPLIT_WORDS
        if _origins(folder) - {TRAIN} and (is_alone or _without_words(folder.name) in rests):
            raise UserError(
                f"{folder} is named after a split but holds no class folder; expected "
                f"{root.name}/train/<class>/<image> and {root.name}/{folder.name}/<class>/<image>; "
                f"rename or move {folder.name} if it is no split"
            )


def _origins(folder: Path) -> set[int]:
    return set(split_words(folder.name).values())


def _without_words(name: str) -> str:
    """Return a name without its words for splits, for comparisons."""
    return re.sub("|".join(sorted(SPLIT_WORDS, key=len, reverse=True)), "", name.lower())


def _holds_images(folder: Path) -> bool:
    return any(is_image(path.name) for path in walk(folder, strict=False))


def check_regular(path: Path) -> os.stat_result:
    """Return the status of a regular file; opening a named pipe, for example, would block.

    Raises:
        UserError: if it is anything else.
        OSError: if it is missing.
    """
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file; remove it")
    return status


def walk(root: Path, *, strict: bool = True) -> Iterator[Path]:
    """Yield every visible file below a folder, following links to folders.

    Args:
        root: the folder.
        strict: whether to refuse what cannot be listed; if not, it is left out, and a folder that
            several links lead to is listed once.

    Raises:
        UserError: if a folder cannot be listed, or a link leads back to a folder above it.
    """

    def refuse(error: OSError) -> None:
        if strict:
            raise UserError(
                f"{error.filename} cannot be listed: {error.strerror}; correct or remove it"
            )

    linked = set[Path]()
    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        path = Path(folder)
        if path.is_symlink():
            target = path.resolve()
            inside = [parent for parent in path.parents if parent.is_relative_to(root)]
            above = inside if strict else (path.parent, root.parent)
            is_loop = any(parent.resolve().is_relative_to(target) for parent in above)
            if is_loop and strict:
                raise UserError(f"{folder} is a link to a folder that contains it; remove it")
            if not strict and (is_loop or target in linked):
                subfolders.clear()
                continue
            linked.add(target)
        subfolders[:] = sorted(filter(is_visible, subfolders))
        yield from (path / name for name in sorted(filter(is_visible, files)))


def unread_note(root: Path, read: Iterable[Path], reads: str) -> tuple[str, ...]:
    """Return a sentence that names the visible files and folders that are not read, if any.

    Args:
        root: the folder of the data.
        read: the files below `root` that are read.
        reads: the source and what it reads, as the end of the sentence.
    """
    entries = list(_unread(root, {os.fspath(path) for path in read}))
    if not entries:
        return ()
    more = len(entries) - _MOST_NAMED
    some = ", ".join(entries[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (one_line(f"not read: {some}; {reads}"),)


def _unread(root: Path, read: set[str]) -> Iterator[str]:
    """Yield each unread folder with the number of its files, and the unread files beside others."""
    parents = {os.path.dirname(path) for path in read}
    holding = parents | {os.fspath(above) for path in parents for above in Path(path).parents}
    for folder, subfolders, files in os.walk(root, followlinks=True):
        visible = sorted(filter(is_visible, subfolders))
        subfolders[:] = [name for name in visible if os.path.join(folder, name) in holding]
        for name in visible:
            if name not in subfolders:
                yield _counted(root, Path(folder, name))
        left = sorted(
            name for name in files if is_visible(name) and os.path.join(folder, name) not in read
        )
        place = Path(folder).relative_to(root)
        for kind in ("image", "file"):
            some = [name for name in left if is_image(name) == (kind == "image")]
            if len(some) > _MOST_OF_FOLDER:
                yield f"{_number(len(some), kind)} such as {(place / some[0]).as_posix()}"
            else:
                yield from ((place / name).as_posix() for name in some)


def _counted(root: Path, folder: Path) -> str:
    """Return the path of an unread folder, with the number of images or files in it."""
    files = [path.name for path in walk(folder, strict=False)]
    images = sum(map(is_image, files))
    count = _number(images, "image") if images else _number(len(files), "file")
    return f"{folder.relative_to(root).as_posix()}/ ({count})"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
