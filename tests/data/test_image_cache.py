"""Decoded images come back from the node's cache as they were, under a name of their files."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedray.data import ReadOptions, load_images
from fedray.data.imageset import Domains, ImageSet
from fedray.data.sources import images_key, sources
from fedray.storage.cache import kept_arrays


def make_images(domains=True, masks=False):
    rng = np.random.default_rng(0)
    return ImageSet(
        source="made",
        images=rng.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8),
        labels=np.arange(6) % 2,
        class_names=("a", "b"),
        origin=np.array([0, 0, 0, 0, 1, 1], np.int8),
        domains=Domains(("y", "x"), np.arange(6, dtype=np.int16) % 2) if domains else None,
        masks=rng.integers(0, 2, (6, 5, 4), dtype=np.uint8) if masks else None,
    )


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("domains", [True, False])
def test_an_image_set_comes_back_whole_and_mapped(domains, masks):
    fresh = make_images(domains, masks)

    def make(making):
        making.allocate("images", fresh.images.shape, "u1")[:] = fresh.images
        fresh.store(making)

    found = ImageSet.stored(kept_arrays("images", "k", "decoded images", make))
    assert (found.sha256, found.source) == (fresh.sha256, "made")
    assert found.class_names == ("a", "b")
    for name in ("images", "labels", "origin", *(["masks"] if masks else [])):
        assert isinstance(getattr(found, name), np.memmap)
        assert not getattr(found, name).flags.writeable
        assert np.array_equal(getattr(found, name), getattr(fresh, name))
    assert (found.masks is not None, found.domains is not None) == (masks, domains)
    if domains:
        assert found.domains.names == ("y", "x")
        assert np.array_equal(found.domains.ids, fresh.domains.ids)


def test_key_follows_names_sizes_times_and_options_but_not_the_folder(tmp_path):
    def files(root):
        return [root / "a", root / "b"]

    here = tmp_path / "here"
    here.mkdir()
    for path in files(here):
        path.write_text("content")
        os.utime(path, ns=(10**18, 10**18))
    key = images_key(here, files(here), 32)
    assert key == images_key(here, reversed(files(here)), 32)
    there = tmp_path / "there"
    here.rename(there)
    assert key == images_key(there, files(there), 32)
    seen = {key, images_key(there, files(there), 64), images_key(there, files(there)[:1], 32)}
    os.utime(there / "a", ns=(10**18, 10**18 + 1))
    seen.add(images_key(there, files(there), 32))
    (there / "a").write_text("contents")
    os.utime(there / "a", ns=(10**18, 10**18))
    seen.add(images_key(there, files(there), 32))
    assert len(seen) == 5


def test_decoded_images_go_to_the_mapped_file_and_not_through_memory(tmp_path):
    (tmp_path / "cat").mkdir()
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
    for i in range(70):
        grey.save(tmp_path / "cat" / f"{i:02}.png")
    colour = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "cat" / "70.png")  # decoding begins anew
    load_images("image_folder", tmp_path, ReadOptions(image_size=4))  # imports
    tracemalloc.start()
    images = load_images("image_folder", tmp_path, ReadOptions(image_size=256))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < images.images.nbytes / 4
    resized = Image.fromarray(colour).resize((256, 256), Image.Resampling.BILINEAR)
    assert np.array_equal(images.images[70], np.asarray(resized).transpose(2, 0, 1))
    resized = grey.resize((256, 256), Image.Resampling.BILINEAR)
    assert (images.images[:70] == np.asarray(resized)).all()


CHANGES = {
    "images": lambda of: 255 - of.images,
    "labels": lambda of: 1 - of.labels,
    "class_names": lambda of: ("a", "c"),
    "origin": lambda of: of.origin[::-1].copy(),
    "domains": lambda of: Domains(("y", "x"), 1 - of.domains.ids),
    "masks": lambda of: 1 - of.masks,
}


@pytest.mark.parametrize("field", CHANGES)
def test_the_hash_of_images_covers_all_that_numbers_depend_on(field):
    made = make_images(masks=True)
    change = {field: CHANGES[field](made), "sha256": ""}
    assert replace(made, sha256="").sha256 == made.sha256
    assert replace(made, **change).sha256 != made.sha256


def test_a_folder_is_listed_once_by_every_process(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "0.png")
    kind, calls = sources.get("image_folder"), []
    listing = kind.listing
    monkeypatch.setattr(kind, "listing", lambda *of: calls.append(1) or listing(*of))
    for count in (1, 2):  # decoded, then from the cache
        load_images("image_folder", tmp_path, ReadOptions(classes=("dog", "cat")))
        assert len(calls) == count
