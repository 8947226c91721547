"""Decoded images that are not as they were written: found, said and decoded again, never used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from fedray import integrity, node_cache
from fedray.data.cache import cached
from fedray.data.imageset import Domains, ImageSet
from fedray.errors import UserError
from fedray.integrity import Damaged, seal

KEY = "k"


def images() -> ImageSet:
    rng = np.random.default_rng(0)
    return ImageSet(
        source="made",
        images=rng.integers(1, 256, (90, 3, 40, 40), dtype=np.uint8),
        labels=np.arange(90) % 3,
        class_names=("cat", "dog", "eel"),
        origin=(np.arange(90) % 2).astype(np.int8),
        domains=Domains(("x", "y"), (np.arange(90) % 2).astype(np.int16)),
        masks=rng.integers(0, 3, (90, 40, 40), dtype=np.uint8),
    )


class Source:
    """Decodes, and counts how often."""

    def __init__(self):
        self.decoded = 0

    def __call__(self) -> ImageSet:
        self.decoded += 1
        return images()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def folder(source, cache) -> Path:
    """The folder of images that were decoded once."""
    cached(KEY, source)
    return cache / "images" / KEY


@pytest.fixture
def checks(monkeypatch) -> list[Path]:
    """The folders of which every byte was read."""
    seen: list[Path] = []
    check = integrity.check
    monkeypatch.setattr(node_cache, "check", lambda folder: (seen.append(folder), check(folder))[1])
    return seen


def same(one: ImageSet, other: ImageSet) -> bool:
    arrays = ("images", "labels", "origin", "masks")
    return (
        all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and np.array_equal(one.domains.ids, other.domains.ids)
        and (one.class_names, one.domains.names) == (other.class_names, other.domains.names)
        and one.sha256 == other.sha256
    )


def change(name, edit):
    """An edit of an array in its file, the file's size and time of modification kept."""

    def damage(folder: Path) -> None:
        path = folder / f"{name}.npy"
        before = path.stat()
        array = np.load(path)
        edit(array)
        np.save(path, array)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    return damage


def zero(array):
    array[...] = 0


def last_bit(array):
    array.reshape(-1).view(np.uint8)[-1] ^= 1


def shuffle(array):
    array[...] = np.random.default_rng(1).permutation(array)


def swap_images(array):
    array[[0, 1]] = array[[1, 0]]


def header(name, old, new):
    def damage(folder: Path) -> None:
        content = (folder / f"{name}.npy").read_bytes()
        assert old in content[:128]
        (folder / f"{name}.npy").write_bytes(content.replace(old, new, 1))

    return damage


def meta(edit):
    def damage(folder: Path) -> None:
        content = json.loads((folder / "meta.json").read_text())
        edit(content)
        (folder / "meta.json").write_text(json.dumps(content))

    return damage


def swap_names(content):
    content["content"]["class_names"].reverse()


def other_hash(content):
    content["content"]["sha256"] = "f" * 64


def no_sums(content):
    content["files"] = {}


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def pipe(name):
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def in_a_folder(name):
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


ARRAYS = ("images", "labels", "origin", "domains", "masks")
DAMAGES = [
    *[(change(name, edit), f"{name}.npy") for name in ARRAYS for edit in (zero, last_bit, shuffle)],
    *[(lambda f, name=name: (f / f"{name}.npy").unlink(), f"{name}.npy") for name in ARRAYS],
    *[(lambda f, name=name: os.truncate(f / f"{name}.npy", 0), f"{name}.npy") for name in ARRAYS],
    (change("images", swap_images), "images.npy"),
    (lambda f: os.truncate(f / "images.npy", 300_000), "images.npy"),
    (lambda f: (f / "images.npy").open("ab").write(b"more"), "images.npy"),
    (lambda f: os.replace(f / "origin.npy", f / "labels.npy"), "labels.npy"),
    (header("images", b"(90, 3, 40, 40)", b"(90, 40, 40, 3)"), "images.npy"),
    (header("images", b"False", b"True "), "images.npy"),
    (header("labels", b"<i8", b">i8"), "labels.npy"),
    (pipe("images.npy"), "images.npy"),
    (in_a_folder("labels.npy"), "labels.npy"),
    (lambda f: (f / "meta.json").unlink(), "meta.json"),
    (meta(swap_names), "meta.json"),
    (meta(other_hash), "meta.json"),
    (meta(no_sums), "meta.json"),
    (meta(lambda content: content.clear()), "meta.json"),
    (meta(lambda content: content.pop("sha256")), "meta.json"),
    (written("meta.json", b""), "meta.json"),
    (written("meta.json", b"[]"), "meta.json"),
    (written("meta.json", b"null"), "meta.json"),
    (written("meta.json", b"\xff\xfe\x00"), "meta.json"),
    (written("meta.json", b"[" * 100_000), "meta.json"),
    (pipe("meta.json"), "meta.json"),
]


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_damage_is_found_said_and_decoded_again(folder, source, caplog, damage, file):
    damage(folder)
    found = cached(KEY, source)
    assert source.decoded == 2
    assert same(found, images())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"the decoded images in {folder} are damaged: {file} ")
    assert said.endswith("making them again")
    assert "\n" not in said
    assert same(cached(KEY, source), images())
    assert source.decoded == 2


@pytest.mark.parametrize(
    "stamp",
    [
        written("checked.json", b""),
        written("checked.json", b"[]"),
        written("checked.json", b'{"files": 1}'),
        written("checked.json", b"[" * 100_000),
        pipe("checked.json"),
        in_a_folder("checked.json"),
        lambda f: (f / "checked.json").unlink(),
        lambda f: (f / "images.npy").touch(),
    ],
)
def test_without_a_usable_stamp_every_byte_is_read(folder, source, checks, caplog, stamp):
    stamp(folder)
    assert same(cached(KEY, source), images())
    assert (checks, source.decoded, caplog.records) == ([folder], 1, [])


def test_one_process_checks_for_those_that_start_with_it(folder, source, checks, monkeypatch):
    for _ in range(3):
        cached(KEY, source)
    assert checks == []  # whoever decoded them knows them
    now = time.time()
    monkeypatch.setattr(node_cache.time, "time", lambda: now + 3600)
    for _ in range(3):
        cached(KEY, source)
    assert (checks, source.decoded) == ([folder], 1)
    monkeypatch.setattr(node_cache.time, "time", lambda: now - 3600)  # the clock was set back
    cached(KEY, source)
    assert checks == [folder] * 2


def rot(folder: Path) -> None:
    """Zero pixels where no file system would see it: the stamp fits the files as they are now."""
    kept = integrity.stamp_of(folder)
    change("images", zero)(folder)
    kept.keep(folder)


def test_what_the_file_system_does_not_see_is_found_a_little_later(
    folder, source, caplog, monkeypatch
):
    rot(folder)
    now = time.time()
    monkeypatch.setattr(node_cache.time, "time", lambda: now + 3600)
    assert same(cached(KEY, source), images())
    assert source.decoded == 2
    assert "images.npy is not as it was written" in caplog.text


def test_verifying_finds_it_at_once(folder, source, caplog):
    rot(folder)
    assert same(cached(KEY, source, verified_since=time.time()), images())
    assert source.decoded == 2
    assert "images.npy is not as it was written" in caplog.text


def test_verifying_finds_a_cache_that_was_rewritten_with_its_checksums(folder, source, caplog):
    change("labels", shuffle)(folder)
    content = integrity.read_meta(folder)
    (folder / "meta.json").unlink()
    (folder / "checked.json").unlink()
    seal(folder, {**content, "sha256": "e" * 64})
    assert not same(cached(KEY, source), images())  # nothing in the folder shows it
    assert same(cached(KEY, source, verified_since=time.time()), images())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "were not what their source gives (checksum " in said


def test_images_are_compared_once_for_all_who_ask_for_the_same_time(folder, source, caplog):
    began = time.time() + 1000  # of a command on a node whose clock is ahead
    for _ in range(3):
        assert same(cached(KEY, source, verified_since=began), images())
    assert source.decoded == 2
    cached(KEY, source, verified_since=began - 500)
    assert source.decoded == 2
    cached(KEY, source, verified_since=began + 1)
    assert source.decoded == 3
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cache_that_can_only_be_read(folder, source, monkeypatch, damaged):
    (folder / "checked.json").unlink()
    if damaged:
        change("images", zero)(folder)

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(node_cache, "node_lock", refused)
    if damaged:
        with pytest.raises(UserError, match=r"cannot be written below .*Permission denied"):
            cached(KEY, source)
    else:
        assert same(cached(KEY, source), images())
    assert source.decoded == 1


def test_checksums_cover_every_byte_in_any_number_of_threads(tmp_path, monkeypatch):
    content = np.random.default_rng(0).integers(0, 256, 3 * 2**20 + 17, dtype=np.uint8)
    (tmp_path / "a").write_bytes(content.tobytes())
    (tmp_path / "empty").write_bytes(b"")
    seal(tmp_path, {"what": 1})
    for count in (1, 2, 7):
        monkeypatch.setattr(integrity, "threads", lambda count=count: count)
        assert integrity.check(tmp_path) == {"what": 1}
    for place in (0, 2**20 - 1, 2**20, 3 * 2**20 + 16):
        content[place] ^= 128
        (tmp_path / "a").write_bytes(content.tobytes())
        with pytest.raises(Damaged, match="a is not as it was written"):
            integrity.check(tmp_path)
        content[place] ^= 128
