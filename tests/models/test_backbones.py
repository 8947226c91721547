import pytest
import torch
import torchvision
from torch import nn

from fedray.models.architectures import architectures
from fedray.models.groups import groups

RAW = {
    "mlp": 128,
    "cnn2": 128,
    "cnn3": 128,
    "cnn4": 512,
    "resnet8s": 64,
    "resnet4": 64,
    "resnet6": 128,
    "resnet8": 256,
    "resnet10": 512,
    "resnet18": 512,
    "resnet34": 512,
    "resnet50": 2048,
    "resnet101": 2048,
    "resnet152": 2048,
    "resnet18_small": 512,
    "resnet50_small": 2048,
    "alexnet": 9216,
    "alexnet_tiny": 512,
    "vgg11": 512,
    "googlenet": 1024,
    "mobilenetv2": 1280,
    "unet": 64,
    "unet_tiny": 16,
}


def on_meta(name: str, channels: int = 3, image_size: int = 32) -> nn.Module:
    with torch.device("meta"):
        return architectures.get(name).make(channels, image_size)


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_every_file_registers_its_networks():
    assert {entry.name: entry.raw for entry in architectures.entries()} == RAW


@pytest.mark.parametrize("name", RAW)
def test_raw_width_at_the_smallest_and_usual_sizes(name):
    least, dense = architectures.get(name).min_image_size, architectures.get(name).dense
    for channels, size in ((1, least), (3, max(28, least)), (3, max(64, least))):
        images = torch.empty(2, channels, size, size, device="meta")
        rows = 2 * size**2 if dense else 2
        assert on_meta(name, channels, size)(images).shape == (rows, RAW[name])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", [n for n in RAW if architectures.get(n).min_image_size > 1])
def test_one_pixel_less_than_the_smallest_size_is_too_few(name):
    image_size = architectures.get(name).min_image_size - 1
    images = torch.zeros(2, 3, image_size, image_size)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        architectures.get(name).make(3, image_size)(images)


@pytest.mark.parametrize(("image_size", "flat"), [(28, 1024), (32, 1600), (64, 10816)])
def test_cnn4_flat_width(image_size, flat):
    linear = [m for m in on_meta("cnn4", 3, image_size).modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(flat, 512)]


@pytest.mark.parametrize(
    ("name", "side"),
    [("resnet4", 8), ("resnet6", 4), ("resnet8", 2), ("resnet10", 1), ("resnet8s", 8)],
)
def test_last_map_at_32_pixels(name, side):
    body = on_meta(name)[:-1]
    assert body(torch.empty(2, 3, 32, 32, device="meta")).shape[2:] == (side, side)


def test_googlenet_is_the_one_of_2014():
    googlenet = on_meta("googlenet")
    # the published Caffe model has 6 998 552 parameters, 1 025 000 of them in its classifier
    assert num_parameters(googlenet) == 6_998_552 - 1_025_000
    assert not any(isinstance(m, nn.BatchNorm2d) for m in googlenet.modules())
    assert [m.p for m in googlenet.modules() if isinstance(m, nn.Dropout)] == [0.4]


def test_mobilenetv2_dropout():
    assert [m.p for m in on_meta("mobilenetv2").modules() if isinstance(m, nn.Dropout)] == [0.2]


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [("resnet8s", 7), ("resnet4", 3), ("resnet6", 5), ("resnet10", 9)],
)
def test_depth_is_in_the_name(name, convolutions):
    kernels = [m.kernel_size for m in on_meta(name).modules() if isinstance(m, nn.Conv2d)]
    assert sum(k != (1, 1) for k in kernels) == convolutions  # and one head


def test_every_group_names_known_backbones():
    assert all(name in RAW for group in groups.entries() for name in group.members)


def test_alexnets_maps_at_256_pixels():
    sizes = []
    x = torch.empty(1, 3, 256, 256, device="meta")
    for layer in on_meta("alexnet", 3, 256):
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(x.shape[-1])
    assert list(dict.fromkeys(sizes)) == [63, 31, 15, 7]
    assert x.shape == (1, 256 * 6 * 6)


def test_vgg11_is_torchvisions_without_its_classifier_and_biases():
    features = torchvision.models.vgg11_bn(weights=None).features
    biases = sum(m.bias.numel() for m in features if isinstance(m, nn.Conv2d))
    assert num_parameters(on_meta("vgg11")) == num_parameters(features) - biases
