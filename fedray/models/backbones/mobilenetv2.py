"""MobileNetV2."""

from collections import OrderedDict

from torch import nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import GlobalMean


@architecture(
    "mobilenetv2",
    version=2,  # dropout in tests draws from streams of their own
    raw=1280,
    paper="Sandler et al., CVPR 2018, arXiv:1801.04381",
    conv_rule="fan_out",
    channels_last=True,
    reference="mobilenet_v2",
    shares={"backbone.": "features."},
)
def _mobilenetv2(channels: int, image_size: int) -> nn.Sequential:
    """MobileNetV2 as in torchvision.

    The stem has stride 2; dropout is 0.2.
    """
    from torchvision.models import mobilenet_v2  # takes more than a second to import

    features = mobilenet_v2(weights=None).features
    stem = features[0][0]
    features[0][0] = nn.Conv2d(channels, stem.out_channels, 3, 2, 1, bias=False)
    parts = OrderedDict(features.named_children())
    return nn.Sequential(OrderedDict(**parts, mean=GlobalMean(), dropout=nn.Dropout(0.2)))
