"""Classifiers: a feature extractor of one common width and a linear head."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Self

import torch
from torch import Tensor, nn

from fedray.models.inputs import ImageFeatures, Inputs, Pixels, values_of


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierOutput:
    """Features and the logits computed from them; models with further outputs extend this class.

    Attributes:
        features: `[B, feature_dim]`, float; for a dense model `[B·H·W, feature_dim]`.
        logits: `[B, num_classes]`, float; for a dense model `[B·H·W, num_classes]`.
    """

    features: Tensor
    logits: Tensor

    def detached(self) -> Self:
        """Return the output with features and logits that have no gradient."""
        return replace(self, features=self.features.detach(), logits=self.logits.detach())


class WidthAdapter(nn.Module):
    """Adaptive average pooling of a flat vector, as `AdaptiveAvgPool1d(feature_dim)`.

    `out[r] = mean(x[floor(r n/d) : ceil((r+1) n/d)])`: a wider vector is averaged, a narrower one
    repeated (64 to 512 gives each value 8 times, and so features of rank at most 64). PyTorch's
    backward pass is neither deterministic on CUDA nor fast on a CPU. Here, few slices suffice,
    because with g = gcd(n, d) the windows repeat every n/g inputs.

    Args:
        raw: n, width of the input.
        feature_dim: d, width of the output.
    """

    def __init__(self, raw: int, feature_dim: int) -> None:
        super().__init__()
        self.groups = gcd(raw, feature_dim)
        self.period = raw // self.groups
        self.outputs = feature_dim // self.groups
        self.windows = tuple(
            (r * self.period // self.outputs, -(-(r + 1) * self.period // self.outputs))
            for r in range(self.outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, raw]` to `[B, feature_dim]`."""
        if self.period == 1:
            return x.unsqueeze(-1).expand(-1, -1, self.outputs).flatten(1)
        x = x.reshape(-1, self.groups, self.period)
        if self.outputs == 1:
            return x.mean(-1)
        return torch.stack([x[..., a:b].mean(-1) for a, b in self.windows], -1).flatten(1)


class ChannelsLast(nn.Module):
    """Conversion of images to the memory order channels-last on a CPU, see `Architecture`."""

    def forward(self, x: Tensor) -> Tensor:
        """Copy `[B, channels, H, W]` to channels-last order; shape and values stay."""
        if x.device.type != "cpu":
            return x
        # as contiguous(memory_format=torch.channels_last), which torch.vmap cannot batch
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class ImageNetPixels(nn.Module):
    """Scaling of images by ImageNet's mean and standard deviation, as torchvision's weights expect.

    There are no tensors, so that nothing of it is trained, sent or stored.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, 3, H, W]` in [-1, 1] to deviations from the mean in standard deviations."""
        factor, shift = _imagenet(x.device)
        return x * factor + shift


@cache
def _imagenet(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the factor and the shift of `ImageNetPixels`, `[3, 1, 1]` each."""
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    return (0.5 / std).to(device), ((0.5 - mean) / std).to(device)


def projector(raw: int, hidden: int, feature_dim: int) -> nn.Sequential:
    """Build a projector of two layers (FC, batch norm, ReLU): `[B, raw]` to `[B, feature_dim]`.

    FedGLCL Table 8, with the official code's order within a layer; features are non-negative.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((raw, hidden), (hidden, feature_dim)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Classifier(nn.Module):
    """Base of the models that clients train, which map inputs to features and logits.

    Attributes:
        reads: the preferred type of input; a model may accept other types, too.
        head: the last layer, from features to logits; the identity for a model without head.
    """

    reads: type[Inputs] = Pixels
    head: nn.Module

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Compute features `[B, d]` and logits `[B, C]`; TypeError for other types of input."""
        raise NotImplementedError


class BackboneClassifier(Classifier):
    """A backbone, a width adapter or projector, and a head.

    FedTSP supplementary C.4; as in HtFLlib, average pooling to the common width d replaces the
    backbone's last layer, so that features, prototypes and heads of all architectures have equal
    shapes. There is no adapter if raw = d.

    Args:
        backbone: maps `[B, channels, H, W]`, or features `[B, n]`, to `[B, raw]`.
        raw: width of the backbone's output.
        feature_dim: d, the common feature width.
        num_classes: C, width of the logits; 0 for a model without head.
        hidden: width between the projector's two layers; None for an adapter.
        channels_last: begin with `ChannelsLast`, for speed on a CPU.
        imagenet: begin with `ImageNetPixels`, for pre-trained weights.
        dense: True if the backbone returns a vector per pixel (`PerPixel`), `[B·H·W, raw]`. The
            adapter is then `Linear(raw, d)`, the final 1x1 convolution of segmentation networks.

    Attributes:
        extractor: backbone and adapter or projector, `[B, channels, H, W]` to `[B, d]`.
        head: `Linear(d, C)`, or the identity without classes.
    """

    def __init__(
        self,
        backbone: nn.Module,
        raw: int,
        feature_dim: int,
        num_classes: int,
        *,
        hidden: int | None = None,
        channels_last: bool = False,
        imagenet: bool = False,
        dense: bool = False,
    ) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if imagenet:
            layers["pixels"] = ImageNetPixels()
        if channels_last:
            layers["layout"] = ChannelsLast()
        layers["backbone"] = backbone
        if hidden is not None:
            layers["projector"] = projector(raw, hidden, feature_dim)
        elif raw != feature_dim:
            layers["adapter"] = (
                nn.Linear(raw, feature_dim) if dense else WidthAdapter(raw, feature_dim)
            )
        self.extractor = nn.Sequential(layers)
        self.head = nn.Linear(feature_dim, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Compute features `[B, d]` and logits `[B, C]`."""
        features = self.extractor(values_of(x, Pixels, ImageFeatures))
        return ClassifierOutput(features, self.head(features))
