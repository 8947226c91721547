"""new_model: two convolutions with group norm. Replace it by any `torch.nn.Module`.

    fedray run fedavg_digits --plugin new_model.py model.group=new_model

trains it on every client. In a mixed federation, clients 0, 2, 4, ... have one
architecture and 1, 3, 5, ... the other: `model.group=new_model_and_mlp`, with a method that allows
it (algorithm=fedproto).
"""

from __future__ import annotations

from torch import Tensor, nn

from fedray.plugin import Group, architecture, groups


class NewModel(nn.Module):
    """Images `[B, channels, H, W]` in [-1, 1] to features `[B, 64]`."""

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
        """Return the mean over the map: one vector of features an image, and no logits."""
        features: Tensor = self.maps(images).mean((2, 3))
        return features


@architecture("new_model")
def new_model(channels: int, image_size: int) -> nn.Module:
    """Return two convolutions with group norm.

    `channels` (1 or 3) and the side of the square images, in pixels, are those of the data. The
    classifier is added, and an average to `model.feature_dim` where that is set to another width.
    Initial weights are those that PyTorch's constructors draw here, under a seed of the run.
    """
    del image_size  # the mean over the map fits any
    return NewModel(channels)


groups.add(Group("new_model_and_mlp", "new_model and mlp in turn", ("new_model", "mlp")))
