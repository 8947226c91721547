from math import ceil, floor

import pytest
import torch
from torch import nn

from fedray.models import (
    BackboneClassifier,
    ImageFeatures,
    Pixels,
    WidthAdapter,
    build,
)
from fedray.models.architectures import architectures


def make(
    name: str, feature_dim: int = 512, image_size: int = 32, channels: int = 3
) -> BackboneClassifier:
    return build(
        name,
        channels=channels,
        image_size=image_size,
        num_classes=10,
        feature_dim=feature_dim,
        generator=torch.Generator().manual_seed(1),
    )


def images(channels: int = 3, image_size: int = 32) -> Pixels:
    random = torch.Generator().manual_seed(2)
    return Pixels(torch.randn(2, channels, image_size, image_size, generator=random))


@pytest.mark.parametrize("name", architectures.names())
def test_features_and_logits(name):
    size = max(32, architectures.get(name).min_image_size)
    model = make(name, image_size=size).eval()
    with torch.no_grad():
        out = model(images(image_size=size))
    dense = architectures.get(name).dense
    rows = 2 * size**2 if dense else 2
    assert out.features.shape == (rows, 512)
    assert out.logits.shape == (rows, 10)
    assert dense or bool((out.features >= 0).all())
    assert bool(torch.isfinite(out.logits).all())
    assert torch.equal(out.logits, model.head(out.features))
    if name == "resnet4":
        blocks = out.features.view(2, 64, 8)
        assert torch.equal(blocks, blocks[..., :1].expand_as(blocks))


@pytest.mark.parametrize("name", ["cnn4", "resnet4", "resnet8s", "mobilenetv2"])
def test_every_parameter_gets_a_gradient(name):
    model = make(name)
    model(images()).logits.square().mean().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("raw", "feature_dim"),
    [(2048, 512), (64, 512), (1280, 512), (512, 768), (64, 768), (1280, 768), (10, 7), (7, 10)],
)
def test_adapter_formula(raw, feature_dim):
    x = torch.randn(3, raw, dtype=torch.float64, requires_grad=True)
    expected = torch.stack(
        [
            x[:, floor(r * raw / feature_dim) : ceil((r + 1) * raw / feature_dim)].mean(1)
            for r in range(feature_dim)
        ],
        1,
    )
    out = WidthAdapter(raw, feature_dim)(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(out, nn.AdaptiveAvgPool1d(feature_dim)(x))
    weights = torch.randn_like(out)
    (a,) = torch.autograd.grad((out * weights).sum(), x, retain_graph=True)
    (b,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(a, b)


def test_adapter_only_where_the_width_differs():
    assert not any(isinstance(m, WidthAdapter) for m in make("cnn4").modules())
    assert any(isinstance(m, WidthAdapter) for m in make("cnn4", 768).modules())
    assert not any("adapter" in key for key in make("cnn4", 768).state_dict())


@pytest.mark.parametrize("name", ["cnn4", "mobilenetv2"])
def test_memory_order_changes_no_value(name):
    model = make(name).eval()
    plain = BackboneClassifier(
        architectures.get(name).make(3, 32), architectures.get(name).raw, 512, 10
    ).eval()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(
            model(images()).logits, plain(images()).logits, rtol=1e-4, atol=1e-5
        )


def test_a_projector_gives_the_features_and_a_model_may_end_there():
    shape = {"channels": 3, "image_size": 32, "feature_dim": 24, "hidden": 40}
    model = build("cnn3", num_classes=0, **shape)
    layers = [type(layer).__name__ for layer in model.extractor.projector]
    assert layers == ["Linear", "BatchNorm1d", "ReLU"] * 2
    assert (model.extractor.projector[0].in_features, model.extractor.projector[3].in_features) == (
        128,
        40,
    )
    assert "adapter" not in dict(model.extractor.named_children())
    out = model.eval()(images())
    assert out.features.shape == (2, 24)
    assert torch.equal(out.features, out.logits)
    assert not any(name.startswith("head") for name, _ in model.named_parameters())
    assert any(
        name.startswith("head")
        for name, _ in build("cnn3", num_classes=3, **shape).named_parameters()
    )


def test_features_are_read_where_the_backbone_takes_them():
    head = BackboneClassifier(nn.Identity(), 6, 6, 3)
    features = torch.randn(4, 6)
    out = head(ImageFeatures(features))
    assert torch.equal(out.features, features)
    assert torch.equal(out.logits, head.head(features))
