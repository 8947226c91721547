"""Arrays are made once per node, mapped by all, and never used when they are not as written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedray.base.errors import UserError
from fedray.storage import cache as node_cache
from fedray.storage.cache import Arrays, content_key, kept_arrays

NAMES = ("pixels", "labels")


class Maker:
    """Makes two arrays, one of them in its file, and counts how often."""

    def __init__(self):
        self.made = 0

    def __call__(self, making: Arrays) -> None:
        self.made += 1
        random = np.random.default_rng(0)
        shape = (90, 3, 40, 40)
        given_up = making.allocate("pixels", (4, 4), "u1")  # as when an image has colour
        given_up[:] = 7
        making.allocate("pixels", shape, "u1")[:] = random.integers(1, 256, shape, np.uint8)
        assert (given_up == 7).all(), "still mapped"
        making.save("labels", np.arange(90) % 3)
        making.content = {"names": ["cat", "dog", "eel"]}


def kept(make: Callable[[Arrays], None]) -> Arrays:
    return kept_arrays("things", "k", "small things", make)


@pytest.fixture
def expected(tmp_path) -> dict[str, np.ndarray]:
    making = Arrays(tmp_path, "small things")
    Maker()(making)
    return {name: np.array(array) for name, array in making.arrays.items()}


@pytest.fixture
def make() -> Maker:
    return Maker()


@pytest.fixture
def folder(make, cache) -> Path:
    """The folder of arrays that were made once."""
    return kept(make).folder


def same(found: Arrays, expected: dict[str, np.ndarray]) -> bool:
    return (
        found.arrays.keys() == expected.keys()
        and all(np.array_equal(found.arrays[name], expected[name]) for name in expected)
        and found.content == {"names": ["cat", "dog", "eel"]}
    )


# --- made once -----------------------------------------------------------------------------------


def test_arrays_are_made_once_and_mapped_read_only(make, folder, cache, expected):
    again = kept(make)
    assert make.made == 1
    assert same(again, expected)
    for array in again.arrays.values():
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    picked = again.arrays["pixels"][np.array([3, 1])]
    assert type(picked) is np.ndarray
    assert picked.flags.writeable
    assert {path.name for path in (cache / "things").iterdir()} <= {"k", "k.lock"}


def test_an_array_without_values_and_other_files_are_kept_too():
    def make(making: Arrays) -> None:
        assert making.allocate("none", (0, 3), "f4").shape == (0, 3)
        (making.folder / "words.txt").write_text("one")

    for _ in range(2):
        found = kept(make)
        assert found.arrays["none"].shape == (0, 3)
        assert (found.folder / "words.txt").read_text() == "one"


def test_a_name_follows_the_content():
    keys = {content_key(*parts) for parts in ([1, "a"], ["a", 1], [1, "a", {}], [[1, "a"]])}
    assert len(keys) == 4
    assert content_key(1, ("a",)) == content_key(1, ["a"])
    assert all(len(key) == 32 for key in keys)


def test_a_killed_writer_leaves_nothing_that_is_read(make, cache, monkeypatch, expected):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(node_cache, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            kept(make)
    assert not (cache / "things" / "k").exists()
    left = cache / "things" / "k.tmp"  # by a process that could not clean up
    left.mkdir()
    assert same(kept(make), expected)
    assert not left.exists()


def test_an_error_while_making_passes_through_and_frees_the_lock(make):
    def broken(making: Arrays) -> None:
        raise FileNotFoundError(2, "No such file", "image 7")

    with pytest.raises(FileNotFoundError, match="image 7"):
        kept(broken)
    kept(make)


def test_a_folder_that_cannot_be_written(make, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(match=r"small things cannot be written .*set FEDRAY_CACHE"):
        kept(make)


def test_a_full_disk_is_a_sentence_and_leaves_nothing(make, cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"small things .*No space left on device.*set FEDRAY_CACH"):
        kept(make)
    assert not [path for path in (cache / "things").iterdir() if path.is_dir()]


_CHILD = """
import sys, time
import numpy as np
from fedray.storage.cache import kept_arrays

def make(making):
    with open(sys.argv[1], "a") as file:
        file.write("made\\n")
    time.sleep(0.5)
    making.save("pixels", np.arange(9))

print("ready", flush=True)
sys.stdin.readline()
print(kept_arrays("things", "shared", "small things", make).arrays["pixels"].sum())
"""


@pytest.mark.slow
def test_two_processes_make_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", _CHILD, str(log)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=200)[0] for child in children] == ["36\n"] * 2
    assert [child.returncode for child in children] == [0, 0]
    assert log.read_text() == "made\n"


# --- damage --------------------------------------------------------------------------------------


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


DAMAGES = [
    *[(lambda f, n=name: (f / f"{n}.npy").unlink()) for name in NAMES],
    *[written(f"{name}.npy", b"") for name in NAMES],
    lambda f: os.truncate(f / "pixels.npy", 300_000),
    lambda f: (f / "meta.json").unlink(),
    *[written("meta.json", content) for content in (b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe")],
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_not_whole_is_made_again(folder, make, expected, damage):
    damage(folder)
    for _ in range(2):
        assert same(kept(make), expected)
        assert make.made == 2


def test_a_folder_that_is_gone_is_made_again(folder, make, expected):
    shutil.rmtree(folder)
    assert same(kept(make), expected)
    assert make.made == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cache_that_can_only_be_read(folder, make, monkeypatch, expected, damaged):
    if damaged:
        (folder / "pixels.npy").unlink()

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(node_cache, "FileLock", refused)
    if damaged:
        with pytest.raises(UserError, match=r"cannot be written below .*Permission denied"):
            kept(make)
    else:
        assert same(kept(make), expected)
    assert make.made == 1


# --- space ---------------------------------------------------------------------------------------


def allocate(cache, size):
    """Make a cache folder with one array of so many bytes."""
    return kept_arrays("t", content_key(size), "things", lambda a: a.allocate("x", (size,), "u1"))


def test_an_array_that_exceeds_the_disk_is_refused_before_it_is_made(cache, monkeypatch):
    usage = SimpleNamespace(total=10, used=9, free=1_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(match=r"things cannot be written .*No space left on device"):
        allocate(cache, 2_000)
    assert not list(cache.rglob("*.npy"))
