"""Arrays are made once per node, mapped by all, and never used when they are not as written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedray.base.errors import UserError
from fedray.storage import cache as node_cache
from fedray.storage.cache import Arrays, content_key, kept_arrays

PIXELS = np.random.default_rng(0).integers(1, 256, (90, 3, 40, 40), np.uint8)


class Maker:
    """Makes three arrays, one of them in its file, and counts how often."""

    def __init__(self):
        self.made = 0

    def __call__(self, making: Arrays) -> None:
        self.made += 1
        given_up = making.allocate("pixels", (4, 4), "u1")  # as when an image has colour
        given_up[:] = 7
        making.allocate("pixels", PIXELS.shape, "u1")[:] = PIXELS
        assert (given_up == 7).all(), "still mapped"
        assert making.allocate("none", (0, 3), "f4").shape == (0, 3)
        making.save("labels", np.arange(90) % 3)
        (making.folder / "words.txt").write_text("one")
        making.content = {"names": ["cat", "dog", "eel"]}


def kept(make) -> Arrays:
    return kept_arrays("things", "k", "small things", make)


def assert_whole(found: Arrays) -> None:
    assert np.array_equal(found.arrays["pixels"], PIXELS)
    assert found.arrays["labels"].tolist() == [n % 3 for n in range(90)]
    assert found.arrays["none"].shape == (0, 3)
    assert found.content == {"names": ["cat", "dog", "eel"]}
    assert (found.folder / "words.txt").read_text() == "one"


@pytest.fixture
def make() -> Maker:
    return Maker()


@pytest.fixture
def folder(make, cache) -> Path:
    """The folder of arrays that were made once."""
    return kept(make).folder


def test_arrays_are_made_once_and_mapped_read_only(make, folder, cache):
    again = kept(make)
    assert make.made == 1
    assert_whole(again)
    assert not any(array.flags.writeable for array in again.arrays.values())
    picked = again.arrays["pixels"][np.array([3, 1])]
    assert type(picked) is np.ndarray
    assert picked.flags.writeable
    assert {path.name for path in (cache / "things").iterdir()} <= {"k", "k.lock"}


def test_a_name_follows_the_content():
    keys = {content_key(*parts) for parts in ([1, "a"], ["a", 1], [1, "a", {}], [[1, "a"]])}
    assert len(keys) == 4
    assert content_key(1, ("a",)) == content_key(1, ["a"])
    assert all(len(key) == 32 for key in keys)


def stopped(error: BaseException):
    def stop(*args, **kwargs):
        raise error

    return stop


@pytest.mark.parametrize(
    ("place", "error", "expected"),
    [
        ("write_json", KeyboardInterrupt(), (KeyboardInterrupt, None)),
        ("sync", OSError(28, "No space left"), (UserError, "small things .*No space left.*CACHE")),
        ("FileLock", OSError(13, "Permission"), (UserError, "small things cannot .*Permission")),
    ],
)
def test_what_stops_a_writer_leaves_nothing_that_is_read(make, cache, place, error, expected):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_cache, place, stopped(error))
        with pytest.raises(expected[0], match=expected[1]):
            kept(make)
    assert not [path for path in (cache / "things").iterdir() if path.is_dir()]
    (cache / "things" / "k.tmp").mkdir()  # by a process that could not clean up
    assert_whole(kept(make))
    assert not (cache / "things" / "k.tmp").exists()


def test_an_error_while_making_passes_through_and_frees_the_lock(make):
    with pytest.raises(FileNotFoundError, match="image 7"):
        kept(stopped(FileNotFoundError(2, "No such file", "image 7")))
    kept(make)


def test_an_array_that_exceeds_the_disk_is_refused_before_it_is_made(cache, monkeypatch):
    usage = SimpleNamespace(total=10, used=9, free=1_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"things cannot be written .*No space left on device"):
        kept(lambda making: making.allocate("x", (2_000,), "u1"))
    assert not list(cache.rglob("*.npy"))


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        *[(lambda f, n=name: (f / n).unlink()) for name in ("pixels.npy", "meta.json")],
        written("labels.npy", b""),
        lambda f: os.truncate(f / "pixels.npy", 300_000),
        *[written("meta.json", content) for content in (b"", b"[]", b"{}", b"\xff\xfe")],
    ],
)
def test_a_folder_that_is_not_whole_is_made_again(folder, make, damage):
    damage(folder)
    for _ in range(2):
        assert_whole(kept(make))
        assert make.made == 2


def test_an_edit_that_keeps_the_size_is_not_noticed(folder, make):
    np.save(folder / "labels.npy", np.zeros(90, np.int64))
    assert (kept(make).arrays["labels"] == 0).all()
    assert make.made == 1


def test_a_cache_that_can_only_be_read_is_read(folder, make, monkeypatch):
    monkeypatch.setattr(node_cache, "FileLock", stopped(PermissionError(13, "Permission denied")))
    assert_whole(kept(make))
    assert make.made == 1


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
