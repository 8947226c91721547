from math import sqrt

import pytest
import torch
from tensors import seeded
from torch import nn

from fedray.base.errors import UserError
from fedray.models import Classifier, build, initialise

SHAPE = {"channels": 3, "image_size": 32, "num_classes": 10, "feature_dim": 512}
SMALL = ["mlp", "cnn2", "cnn3", "cnn4", "resnet8s", "resnet4", "googlenet", "mobilenetv2"]


def equal(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize("name", SMALL)
def test_weights_are_a_function_of_the_generator(name):
    first = build(name, **SHAPE, generator=seeded(3))
    assert equal(first, build(name, **SHAPE, generator=seeded(3)))
    assert not equal(first, build(name, **SHAPE, generator=seeded(4)))


def test_generator_is_advanced():
    generator = seeded(3)
    first = build("mlp", **SHAPE, generator=generator)
    assert not equal(first, build("mlp", **SHAPE, generator=generator))


@pytest.mark.parametrize("name", SMALL)
def test_global_random_state_is_left_alone(name):
    before = torch.get_rng_state()
    build(name, **SHAPE, generator=seeded(3))
    build(name, **SHAPE)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", SMALL)
def test_a_model_of_zeros_takes_a_state(name):
    model, empty = build(name, **SHAPE, generator=seeded(3)), build(name, **SHAPE)
    assert isinstance(empty, Classifier)
    assert not any(tensor.any() for tensor in empty.state_dict().values())
    empty.load_state_dict(model.state_dict())
    assert equal(model, empty)
    assert all(p.requires_grad and p.device.type == "cpu" for p in empty.parameters())


def test_default_rule_is_pytorchs():
    # kaiming_uniform with a = sqrt(5) is uniform within 1/sqrt(fan_in), weights and biases alike
    model = build("cnn4", **SHAPE, generator=seeded(3))
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 4
    for layer in layers:
        bound = 1 / sqrt(layer.weight[0].numel())
        assert float(layer.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
        assert float(layer.weight.detach().std()) == pytest.approx(bound / sqrt(3), rel=0.05)
        assert 0.8 * bound < float(layer.bias.detach().abs().max()) <= bound


@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2"])
def test_residual_rule_is_normal_by_fan_out(name):
    model = build(name, **SHAPE, generator=seeded(3))
    for conv in model.modules():
        if isinstance(conv, nn.Conv2d) and conv.weight.numel() > 5000:
            fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
            # PyTorch's fan_out is not divided by the groups of a depthwise convolution
            assert float(conv.weight.detach().std()) == pytest.approx(sqrt(2 / fan_out), rel=0.05)
    assert float(model.head.weight.detach().abs().max()) <= 1 / sqrt(512)


def test_batch_norm_starts_neutral():
    model = build("resnet4", **SHAPE, generator=seeded(3))
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert bool((norm.weight == 1).all())
            assert not norm.bias.any()
            assert not norm.running_mean.any()
            assert bool((norm.running_var == 1).all())
            assert int(norm.num_batches_tracked) == 0


def test_initialise_knows_its_layers():
    module = nn.Sequential(nn.Embedding(50, 40), nn.Linear(40, 5), nn.BatchNorm1d(5))
    for parameter in module.parameters():
        nn.init.constant_(parameter, float("nan"))
    initialise(module, seeded(3))
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
    assert float(module[0].weight.detach().std()) == pytest.approx(1, rel=0.1)


def test_initialise_leaves_nothing_unset():
    with pytest.raises(TypeError, match=r"there is no rule to initialise '1' \(LayerNorm\)"):
        initialise(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), seeded(3))


@pytest.mark.parametrize(("name", "size", "least"), [("cnn4", 8, 16), ("googlenet", 28, 31)])
def test_image_too_small(name, size, least):
    shape = SHAPE | {"image_size": size}
    with pytest.raises(
        UserError,
        match=rf"{name}: images of {size}x{size} pixels are too small, it needs at least "
        rf"{least}x{least}; raise data.image_size or choose another model.group",
    ):
        build(name, **shape)


def test_unknown_architecture_names_the_nearest():
    with pytest.raises(UserError, match=r"no architecture 'ResNet-19'. Did you mean 'resnet"):
        build("ResNet-19", **SHAPE)
