"""Networks without residual connections: `mlp`, `cnn2`, `cnn3`, `cnn4`, `vgg11`."""

from torch import nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import GlobalMean, conv_bn, relu


@architecture("mlp", raw=128)
def _mlp(channels: int, image_size: int) -> nn.Sequential:
    """One hidden layer of 128, for 8x8 digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, 128), relu())


@architecture("cnn2", raw=128, min_image_size=4, channels_last=True)
def _cnn2(channels: int, image_size: int) -> nn.Sequential:
    """Two 3x3 convolutions and a layer of 128, for a laptop."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        relu(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        relu(),
        nn.Flatten(),
        nn.Linear(32 * (image_size // 4) ** 2, 128),
        relu(),
    )


@architecture("cnn3", raw=128, min_image_size=4, channels_last=True)
def _cnn3(channels: int, image_size: int) -> nn.Sequential:
    """Three 3x3 convolutions with batch norm and a global mean, for a laptop."""
    return nn.Sequential(
        *conv_bn(channels, 32, 3),
        nn.MaxPool2d(2),
        relu(),
        *conv_bn(32, 64, 3),
        nn.MaxPool2d(2),
        relu(),
        *conv_bn(64, 128, 3),
        relu(),
        GlobalMean(),
    )


@architecture(
    "cnn4",
    raw=512,
    paper="McMahan et al., AISTATS 2017, arXiv:1602.05629",
    min_image_size=16,
    channels_last=True,
)
def _cnn4(channels: int, image_size: int) -> nn.Sequential:
    """FedAvg's CNN: two 5x5 convolutions and a layer of 512.

    HtFLlib's `FedAvgCNN`. The classifier's head is the fourth layer. The flattened maps have 1600
    numbers at 32 pixels and 10816 at 64.
    """
    side = ((image_size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.MaxPool2d(2),
        relu(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        relu(),
        nn.Flatten(),
        nn.Linear(64 * side**2, 512),
        relu(),
    )


_CHANNELS, _POOLED = (64, 128, 256, 256, 512, 512, 512, 512), (0, 1, 3, 5, 7)
"""Output channels of each convolution; the convolutions that a max-pool follows."""


@architecture(
    "vgg11",
    raw=512,
    paper="Simonyan & Zisserman, ICLR 2015, arXiv:1409.1556",
    min_image_size=32,
    channels_last=True,
)
def _vgg11(channels: int, image_size: int) -> nn.Sequential:
    """VGG-11's eight convolutions with batch norm and a global mean."""
    layers: list[nn.Module] = []
    inputs = channels
    for number, outputs in enumerate(_CHANNELS):
        pool = [nn.MaxPool2d(2)] if number in _POOLED else []
        layers += [*conv_bn(inputs, outputs, 3), *pool, relu()]
        inputs = outputs
    return nn.Sequential(*layers, GlobalMean())
