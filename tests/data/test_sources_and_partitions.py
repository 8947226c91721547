"""Every source, partition and augmentation is described, and its parameters can be written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab import refused
from pydantic import Field

from fedray.base.errors import UserError
from fedray.config import component
from fedray.data import ReadOptions, load_images
from fedray.data import sources as module
from fedray.data.augment import augmentations
from fedray.data.partitions import partitions
from fedray.data.sources import Listing, Row, Source, sources

REGISTRIES = {
    "data source": ("data.source", sources),
    "partition": ("data.partition", partitions),
    "augmentation": ("data.augment", augmentations),
}
ENTRIES = [
    pytest.param(kind, key, entry, id=f"{kind} {entry.name}")
    for kind, (key, registry) in REGISTRIES.items()
    for entry in registry.entries()
]


@pytest.mark.parametrize(("kind", "key", "entry"), ENTRIES)
def test_an_entry_is_made_from_its_parameters_and_equal_by_value(kind, key, entry):
    made = component(kind, entry.name).build()
    assert type(made) is entry
    assert made == entry()
    assert hash(made) == hash(entry())
    assert made not in [other() for other in REGISTRIES[kind][1].entries() if other is not entry]


@pytest.fixture
def constant(monkeypatch):
    """A registered source with a parameter."""

    class Constant(Source):
        """Images of one grey value."""

        name = "constant"
        value: int = Field(7, ge=0, le=255)
        """Of every pixel."""

        def files(self, root: Path, options: ReadOptions) -> list[Path]:
            return [root / "labels.txt"]

        def listing(self, root: Path, options: ReadOptions) -> Listing:
            labels = map(int, (root / "labels.txt").read_text().split())
            image = np.full((2, 2), self.value, np.uint8)
            return Listing(("a", "b"), [Row(image, label) for label in labels])

    monkeypatch.setitem(sources._entries, "constant", Constant)
    return Constant


def test_a_sources_parameters_reach_it_and_its_cache(constant, tmp_path):
    (tmp_path / "labels.txt").write_text("0 1 1")
    default = load_images("constant", tmp_path)
    other = load_images(component("data source", "constant", value=9), tmp_path)
    assert set(default.images.ravel().tolist()) == {7}
    assert set(other.images.ravel().tolist()) == {9}
    assert (
        load_images(component("data source", "constant", value=7), tmp_path).sha256
        == default.sha256
    )
    with pytest.raises(
        UserError, match=r"data.source.value: input should be less than or equal to 255, found"
    ):
        load_images(component("data source", "constant", value=256), tmp_path)
    refused(
        lambda: load_images(component("data source", "constant", valeu=1), tmp_path),
        "'valeu'",
        "'value'",
    )


def test_another_version_of_a_plugin_reads_its_images_anew(constant, tmp_path, monkeypatch):
    (tmp_path / "labels.txt").write_text("0 1 1")
    for tone in (3, 4):
        image = np.full((2, 2), tone, np.uint8)
        listing = Listing(("a", "b"), [Row(image, 0), Row(image, 1)])
        monkeypatch.setattr(constant, "listing", lambda *_, listing=listing: listing)
        monkeypatch.setattr(module, "plugin_of", lambda _, tone=tone: f"version {tone}")
        assert set(load_images("constant", tmp_path).images.ravel().tolist()) == {tone}
