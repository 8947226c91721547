"""AlexNet with batch norm, and a smaller network of the same kind."""

from collections import OrderedDict

from torch import nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import conv_bn, relu


@architecture(
    "alexnet",
    raw=9216,
    paper="Krizhevsky et al., NeurIPS 2012; with batch norm: Li et al., ICLR 2021 (FedBN)",
    min_image_size=63,
    channels_last=True,
    reference="alexnet",
    shares={  # the convolutions, FC6 and FC7
        "backbone.": "features.",
        "projector.0.": "classifier.1.",
        "projector.3.": "classifier.4.",
    },
)
def _alexnet(channels: int, image_size: int) -> nn.Sequential:
    """AlexNet's five convolutions with batch norm; its hidden layers are the projector.

    256 maps of 6x6 (FedBN, FedGLCL). torchvision's network has no batch norm: these layers keep
    their drawn values. Set `model.projector=4096` and, for a classifier, `model.feature_dim=4096`
    (FedGLCL's baselines, official code); FedGLCL has the texts' width.
    """
    # torchvision's number of each convolution, then its channels, kernel, stride and padding
    convolutions = (
        (0, 64, 11, 4, 2),
        (3, 192, 5, 1, 2),
        (6, 384, 3, 1, 1),
        (8, 256, 3, 1, 1),
        (10, 256, 3, 1, 1),
    )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = channels
    for number, outputs, kernel, stride, padding in convolutions:
        layers[f"{number}"] = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = relu()
        if number in (0, 3, 10):
            layers[f"pool{number}"] = nn.MaxPool2d(3, 2)
        inputs = outputs
    layers["pool"] = nn.AdaptiveAvgPool2d(6)
    layers["flat"] = nn.Flatten()
    return nn.Sequential(layers)


@architecture("alexnet_tiny", raw=512, min_image_size=7, channels_last=True)
def _alexnet_tiny(channels: int, image_size: int) -> nn.Sequential:
    """Five convolutions with batch norm like AlexNet's, for 48 to 64 pixels on a CPU."""
    return nn.Sequential(
        *conv_bn(channels, 32, 5, 2),
        nn.MaxPool2d(2),
        relu(),
        *conv_bn(32, 64, 3),
        nn.MaxPool2d(2),
        relu(),
        *conv_bn(64, 128, 3),
        relu(),
        *conv_bn(128, 128, 3),
        relu(),
        *conv_bn(128, 128, 3),
        relu(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
