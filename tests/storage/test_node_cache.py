"""Arrays are made once per node, mapped by all, and never used when they are not as written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedray.errors import UserError
from fedray.storage import cache as node_cache
from fedray.storage.cache import Arrays, CacheUnwritable, content_key, kept_arrays

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


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


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
    left = cache / "things" / "k.tmp-killed"  # by a process that could not clean up
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
    with pytest.raises(CacheUnwritable, match=r"small things cannot be written .*set FEDRAY_CACHE"):
        kept(make)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve space")
def test_a_full_disk_is_a_sentence_and_leaves_nothing(make, cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
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


def swap(array):
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


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def instead(name, make):
    """Something else in a file's place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


DAMAGES = [
    *[(change(name, edit), f"{name}.npy") for name in NAMES for edit in (zero, last_bit, shuffle)],
    *[(lambda f, n=name: (f / f"{n}.npy").unlink(), f"{name}.npy") for name in NAMES],
    *[(written(f"{name}.npy", b""), f"{name}.npy") for name in NAMES],
    (change("pixels", swap), "pixels.npy"),
    (lambda f: os.truncate(f / "pixels.npy", 300_000), "pixels.npy"),
    (lambda f: os.truncate(f / "pixels.npy", 3), "pixels.npy"),
    (lambda f: (f / "pixels.npy").open("ab").write(b"more"), "pixels.npy"),
    (lambda f: shutil.copy(f / "pixels.npy", f / "labels.npy"), "labels.npy"),
    (header("pixels", b"(90, 3, 40, 40)", b"(90, 40, 40, 3)"), "pixels.npy"),
    (header("pixels", b"False", b"True "), "pixels.npy"),
    (header("labels", b"<i8", b">i8"), "labels.npy"),
    (instead("labels.npy", Path.mkdir), "labels.npy"),
    (lambda f: (f / "meta.json").unlink(), "meta.json"),
    (meta(lambda content: content["content"]["names"].reverse()), "meta.json"),
    (meta(lambda content: content.update(files={})), "meta.json"),
    (meta(lambda content: content.clear()), "meta.json"),
    (meta(lambda content: content.pop("checksum")), "meta.json"),
    (written("meta.json", b""), "meta.json"),
    (written("meta.json", b"{"), "meta.json"),
    (written("meta.json", b"[]"), "meta.json"),
    (written("meta.json", b"null"), "meta.json"),
    (written("meta.json", b"\xff\xfe\x00"), "meta.json"),
    (written("meta.json", b"[" * 100_000), "meta.json"),
    (instead("meta.json", os.mkfifo), "meta.json"),
]


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_damage_is_found_said_and_made_again(folder, make, caplog, expected, damage, file):
    damage(folder)
    for _ in range(2):
        assert same(kept(make), expected)
        assert make.made == 2
    (said,) = warnings(caplog)
    assert said.startswith(f"the small things in {folder} are damaged: {file} ")
    assert said.endswith("making them again")
    assert "\n" not in said


def test_a_folder_that_is_gone_is_made_again(folder, make, caplog, expected):
    shutil.rmtree(folder)
    assert same(kept(make), expected)
    assert (make.made, warnings(caplog)) == (2, [])


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cache_that_can_only_be_read(folder, make, monkeypatch, expected, damaged):
    if damaged:
        change("pixels", zero)(folder)

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(node_cache, "node_lock", refused)
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
    with pytest.raises(CacheUnwritable, match=r"need 2\.0 kB, but only 1\.0 kB are free"):
        allocate(cache, 2_000)
    assert not list(cache.rglob("*.npy"))


def test_a_large_cache_is_announced_once(cache, monkeypatch, caplog):
    monkeypatch.setattr(node_cache, "ANNOUNCED_BYTES", 5_000)
    monkeypatch.setattr(node_cache, "LARGE_BYTES", 4_000)
    allocate(cache, 2_000)
    assert not caplog.records
    allocate(cache, 3_000)
    assert "the things take 3.0 kB, so that" in caplog.text
    caplog.clear()
    allocate(cache, 1_000)  # small, in a cache that was announced
    assert not caplog.records
    allocate(cache, 4_500)
    assert len(caplog.records) == 1
    assert node_cache.cache_bytes() > 10_000
