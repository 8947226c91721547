"""Types of input: how they are made of stored arrays, and that they are not mixed up."""

from __future__ import annotations

import pytest
import torch

from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.models.inputs import values_of


def test_stored_pixels_become_floats_between_minus_one_and_one():
    stored = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    pixels = Pixels.of(stored)
    torch.testing.assert_close(pixels.values, torch.tensor([[[[-1.0, 1.0, -0.6]]]]))
    assert pixels.values.dtype == torch.float32
    assert stored.flatten().tolist() == [0, 255, 51]


@pytest.mark.parametrize("kind", [Pixels, PatchFeatures, ImageFeatures])
def test_floats_stay_as_they_are(kind):
    stored = torch.randn(3, 4, 5)
    made = kind.of(stored)
    assert type(made) is kind
    assert torch.equal(made.values, stored)
    assert len(made) == 3


def test_values_are_given_for_the_right_kind_alone():
    features = ImageFeatures(torch.ones(2, 3))
    assert values_of(features, Pixels, ImageFeatures) is features.values
    with pytest.raises(TypeError, match=r"reads Pixels or PatchFeatures, found ImageFeatures$"):
        values_of(features, Pixels, PatchFeatures)
