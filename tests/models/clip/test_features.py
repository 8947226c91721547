"""Frozen features: what the tower gives, computed once, under a name that says from what."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from clips import CPU

from fedray.base.errors import UserError
from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.models.clip.features import frozen_features


@pytest.fixture
def image_set():
    pixels = np.random.default_rng(0).integers(0, 256, (200, 1, 8, 8), dtype=np.uint8)
    return SimpleNamespace(images=pixels, sha256="content")


USED = np.arange(1, 200, dtype=np.int64)  # more than one batch


@pytest.mark.parametrize("used", [USED, USED[::-1].copy()])
@pytest.mark.parametrize(("kind", "position"), [(ImageFeatures, 0), (PatchFeatures, 1)])
def test_they_are_what_the_tower_gives(clip, image_set, used, kind, position):
    found = frozen_features(clip, image_set, used, kind, CPU)
    pixels = Pixels.of(torch.from_numpy(image_set.images[used]))
    with torch.no_grad():
        expected = clip.vision.encode(clip.vision.embed(pixels.values))[position]
    assert found.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(found.copy()), expected, rtol=1e-4, atol=1e-5)
    assert not found.flags.writeable


def test_they_are_computed_once(clip, image_set, monkeypatch, cache):
    first = frozen_features(clip, image_set, USED, ImageFeatures, CPU)
    monkeypatch.setattr(type(clip.vision), "encode", lambda *args: pytest.fail("computed twice"))
    assert np.array_equal(frozen_features(clip, image_set, USED, ImageFeatures, CPU), first)
    names = [path.name for path in (cache / "features").iterdir()]
    assert len([name for name in names if not name.endswith(".lock")]) == 1


def test_other_images_kind_content_or_clip_are_other_files(clip, image_set, cache):
    frozen_features(clip, image_set, USED, ImageFeatures, CPU)
    frozen_features(clip, image_set, USED, PatchFeatures, CPU)
    frozen_features(clip, image_set, USED[::-1], ImageFeatures, CPU)
    image_set.sha256 = "other content"
    frozen_features(clip, image_set, USED, ImageFeatures, CPU)
    other = SimpleNamespace(vision=clip.vision, identity="another CLIP")
    frozen_features(other, image_set, USED, ImageFeatures, CPU)
    assert len(list((cache / "features").glob("*/features.npy"))) == 5


def test_a_cache_that_cannot_be_written_is_said_so(clip, image_set, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"frozen features cannot be written .* set FEDRAY_CACHE"):
        frozen_features(clip, image_set, USED, ImageFeatures, CPU)


def test_cards_of_another_kind_have_their_own_files(image_set, monkeypatch):
    names = []

    def keep(kind, name, what, make):
        names.append(name)
        return SimpleNamespace(arrays={"features": None})

    clip = SimpleNamespace(identity="a CLIP", vision=SimpleNamespace(dim=2, patches=1))
    monkeypatch.setattr("fedray.models.clip.features.kept_arrays", keep)
    for card in ("A100", "H200", "A100"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, card=card: card)
        frozen_features(clip, image_set, USED, ImageFeatures, torch.device("cuda"))
    assert names[0] == names[2] != names[1]
