"""Dense networks: a pixel is a sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tensors import gaussian
from torch import nn

from fedray.models import Pixels, build
from fedray.models.backbones.unet import PerPixel


def test_rows_are_pixels_image_by_image_and_row_by_row():
    maps = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    rows = PerPixel()(maps)
    assert rows.shape == (2 * 4 * 5, 3)
    assert torch.equal(rows[:, 1], maps[:, 1].flatten())


def test_a_linear_layer_on_pixels_is_a_1x1_convolution():
    head, maps = nn.Linear(3, 7), gaussian(2, 3, 4, 5)
    weight = head.weight[:, :, None, None]
    convolved = F.conv2d(maps, weight, head.bias)
    torch.testing.assert_close(head(PerPixel()(maps)), PerPixel()(convolved))


@pytest.mark.parametrize("group", ["unet", "unet_tiny"])
@pytest.mark.parametrize("size", [(16, 16), (19, 26)])
def test_every_pixel_gets_its_features(group, size):
    shape = {"channels": 3, "image_size": 16, "feature_dim": 24}
    with torch.device("meta"):
        images = torch.empty(2, 3, *size)
    out = build(group, num_classes=5, **shape).to("meta")(Pixels(images))
    assert out.features.shape == (2 * size[0] * size[1], 24)
    assert out.logits.shape == (2 * size[0] * size[1], 5)
    bare = build(group, num_classes=0, **shape).to("meta")(Pixels(images))
    assert bare.logits.shape == bare.features.shape
