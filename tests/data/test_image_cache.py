"""Decoded once per node, mapped by all, never read when torn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from fedray import node_cache
from fedray.data import load_images
from fedray.data.cache import cached, source_key
from fedray.data.imageset import Domains, ImageSet
from fedray.errors import UserError


def make_images(seed=0, domains=True, masks=False):
    rng = np.random.default_rng(seed)
    return ImageSet(
        source="made",
        images=rng.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8),
        labels=np.arange(6) % 2,
        class_names=("a", "b"),
        origin=np.array([0, 0, 0, 0, 1, 1], np.int8),
        domains=Domains(("x", "y"), np.arange(6, dtype=np.int16) % 2) if domains else None,
        masks=rng.integers(0, 2, (6, 5, 4), dtype=np.uint8) if masks else None,
    )


class Counted:
    def __init__(self, **kwargs):
        self.calls, self.kwargs = 0, kwargs

    def __call__(self):
        self.calls += 1
        return make_images(**self.kwargs)


@pytest.mark.parametrize("domains", [True, False])
def test_second_open_does_not_decode(domains):
    load = Counted(domains=domains)
    first, second = cached("k", load), cached("k", load)
    assert load.calls == 1
    fresh = make_images(domains=domains)
    for images in (first, second):
        assert images.sha256 == fresh.sha256
        assert images.source == "made"
        assert images.class_names == ("a", "b")
        for name in ("images", "labels", "origin"):
            assert np.array_equal(getattr(images, name), getattr(fresh, name))
        if domains:
            assert images.domains.names == ("x", "y")
            assert np.array_equal(images.domains.ids, fresh.domains.ids)
        else:
            assert images.domains is None


def test_arrays_are_mapped_read_only_and_picks_are_copies():
    images = cached("k", Counted())
    assert isinstance(images.images, np.memmap)
    assert not images.images.flags.writeable
    picked = images.images[np.array([3, 1])]
    assert type(picked) is np.ndarray
    assert picked.flags.writeable


def test_masks_are_mapped_with_their_images(cache):
    load = Counted(masks=True)
    first, second = cached("k", load), cached("k", load)
    fresh = make_images(masks=True)
    assert load.calls == 1
    for images in (first, second):
        assert isinstance(images.masks, np.memmap)
        assert np.array_equal(images.masks, fresh.masks)
        assert images.sha256 == fresh.sha256 != make_images().sha256
    (cache / "images" / "k" / "masks.npy").unlink()
    assert cached("k", load).masks is not None
    assert load.calls == 2


def test_no_leftovers(cache):
    cached("k", Counted())
    assert {p.name for p in (cache / "images").iterdir()} <= {"k", "k.lock"}


@pytest.mark.parametrize(
    "tear",
    [
        lambda f: (f / "meta.json").unlink(),
        lambda f: (f / "labels.npy").unlink(),
        lambda f: os.truncate(f / "images.npy", 200),
        lambda f: os.truncate(f / "images.npy", 3),
        lambda f: (f / "meta.json").write_text('{"source": "made"}'),
        lambda f: (f / "meta.json").write_text("{"),
        lambda f: np.save(f / "labels.npy", np.zeros(5, np.int64)),
        shutil.rmtree,
    ],
)
def test_a_torn_folder_is_rebuilt(cache, tear):
    load = Counted()
    cached("k", load)
    tear(cache / "images" / "k")
    assert cached("k", load).sha256 == make_images().sha256
    assert load.calls == 2


def test_a_killed_writer_leaves_nothing_that_is_read(cache, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(node_cache, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            cached("k", Counted())
    assert not (cache / "images" / "k").exists()
    left = cache / "images" / "k.tmp-killed"  # by a process that could not clean up
    left.mkdir()
    load = Counted()
    cached("k", load)
    assert load.calls == 1
    assert not left.exists()


def test_an_error_while_decoding_passes_through_and_frees_the_lock():
    def broken():
        raise UserError("row 7 is broken")

    with pytest.raises(UserError, match="row 7 is broken"):
        cached("k", broken)
    cached("k", Counted())


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written below .*; set FEDRAY_CACHE"):
        cached("k", Counted())


def test_key_follows_names_sizes_times_and_options_but_not_the_folder(tmp_path):
    def files(root):
        return [root / "a", root / "b"]

    here = tmp_path / "here"
    here.mkdir()
    for path in files(here):
        path.write_text("content")
        os.utime(path, ns=(10**18, 10**18))
    key = source_key("parquet", here, files(here), image_size=32)
    assert key == source_key("parquet", here, reversed(files(here)), image_size=32)
    there = tmp_path / "there"
    here.rename(there)
    assert key == source_key("parquet", there, files(there), image_size=32)
    assert key.startswith("parquet-")
    seen = {
        key,
        source_key("parquet", there, files(there), image_size=64),
        source_key("image_folder", there, files(there), image_size=32),
        source_key("parquet", there, files(there)[:1], image_size=32),
    }
    os.utime(there / "a", ns=(10**18, 10**18 + 1))
    seen.add(source_key("parquet", there, files(there), image_size=32))
    (there / "a").write_text("contents")
    os.utime(there / "a", ns=(10**18, 10**18))
    seen.add(source_key("parquet", there, files(there), image_size=32))
    assert len(seen) == 6


_CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from fedray.data.cache import cached
from fedray.data.imageset import ImageSet

def load():
    with open(sys.argv[1], "a") as file:
        file.write("decoded\\n")
    time.sleep(0.5)
    return ImageSet("made", np.zeros((9, 1, 2, 2), np.uint8), np.zeros(9, np.int64), ("a",),
                    np.zeros(9, np.int8))

print("ready", flush=True)
sys.stdin.readline()
print(cached("shared", load).sha256)
"""


def test_two_processes_decode_once(tmp_path):
    log = tmp_path / "log"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs[0] == outputs[1]
    assert log.read_text() == "decoded\n"


def test_decoded_images_go_to_the_mapped_file_and_not_through_memory(tmp_path):
    (tmp_path / "cat").mkdir()
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
    for i in range(70):
        grey.save(tmp_path / "cat" / f"{i:02}.png")
    colour = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "cat" / "70.png")  # decoding begins anew
    load_images("image_folder", tmp_path, image_size=4)  # imports
    tracemalloc.start()
    images = load_images("image_folder", tmp_path, image_size=256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < images.images.nbytes / 4
    resized = Image.fromarray(colour).resize((256, 256), Image.Resampling.BILINEAR)
    assert np.array_equal(images.images[70], np.asarray(resized).transpose(2, 0, 1))
    resized = grey.resize((256, 256), Image.Resampling.BILINEAR)
    assert (images.images[:70] == np.asarray(resized)).all()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve space")
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, cache, monkeypatch):
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "cat" / "0.png")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"No space left on device.*set FEDRAY_CACHE to a folder"):
        load_images("image_folder", tmp_path)
    assert not [p for p in (cache / "images").iterdir() if p.is_dir()]
