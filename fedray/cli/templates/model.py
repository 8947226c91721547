"""new_model: two convolutions with group norm. Replace it by any `torch.nn.Module`.

Train it on every client with

    fedray run fedavg_digits --plugin new_model.py model.group=new_model

In a mixed federation, `model.group=new_model_and_mlp`, clients 0, 2, 4, ... train new_model and
clients 1, 3, 5, ... train mlp. Choose a method that supports this, for example
algorithm=fedproto.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedray.plugin import Group, architecture, groups


class NewModel(nn.Module):
    """Map images `[B, channels, H, W]` in [-1, 1] to features `[B, 64]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.GELU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.GroupNorm(8, 64),
            nn.GELU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return one feature vector per image, the mean over positions; no logits."""
        features: Tensor = self.maps(images).mean((2, 3))
        return features


@architecture("new_model")
def new_model(channels: int, image_size: int) -> nn.Module:
    """Two convolutions with group norm.

    fedray passes the number of channels (1 or 3) and the side of the square images in pixels. It
    adds the classifier, and average pooling to `model.feature_dim` if that differs from 64. The
    constructors draw the initial weights under the run's seed.
    """
    del image_size  # averaging over positions accepts any size
    return NewModel(channels)


groups.add(Group("new_model_and_mlp", "new_model and mlp in turn", ("new_model", "mlp")))
