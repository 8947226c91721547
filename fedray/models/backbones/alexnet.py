"""AlexNet with batch norm, and a smaller network of the same kind."""

from __future__ import annotations

from torch import nn

from fedray.models.architectures import Architecture, PretrainedLayout, architectures
from fedray.models.backbones.layers import conv_bn, relu


def _alexnet(channels: int, image_size: int) -> nn.Sequential:
    """Build AlexNet's five convolutions with batch norm (FedBN, FedGLCL): 256 maps of 6x6.

    AlexNet's two hidden layers are the projector. Set `model.projector=4096` and, for a classifier,
    `model.feature_dim=4096` (FedGLCL's baselines, official code); FedGLCL has the texts' width.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 64, 11, 4, 2),
        nn.BatchNorm2d(64),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.BatchNorm2d(192),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.BatchNorm2d(384),
        relu(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.BatchNorm2d(256),
        relu(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.BatchNorm2d(256),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
    )


def _alexnet_tiny(channels: int, image_size: int) -> nn.Sequential:
    """Build five convolutions with batch norm like AlexNet's, for 48 to 64 pixels (ours)."""
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


architectures.add(
    Architecture(
        name="alexnet",
        summary="AlexNet's five convolutions with batch norm; its hidden layers are the projector",
        make=_alexnet,
        raw=9216,
        paper="Krizhevsky et al., NeurIPS 2012; with batch norm: Li et al., ICLR 2021 (FedBN)",
        min_image_size=63,
        channels_last=True,
        # torchvision's network has no batch norm, so these layers keep their drawn values
        pretrained_layout=PretrainedLayout(
            "alexnet",
            backbone_only=("1.", "5.", "9.", "12.", "15."),
            projector=(("0.", "classifier.1."), ("3.", "classifier.4.")),  # FC6, FC7
        ),
    )
)
architectures.add(
    Architecture(
        name="alexnet_tiny",
        summary="Five convolutions with batch norm like AlexNet's, for 48 to 64 pixels on a CPU",
        make=_alexnet_tiny,
        raw=512,
        min_image_size=7,
        channels_last=True,
    )
)
