"""From stored pixels to what models read."""

from torch import Tensor

__all__ = ["to_float"]


def to_float(images: Tensor) -> Tensor:
    """Map uint8 [B, ...] to float32 in [-1, 1]: ToTensor and Normalize(0.5, 0.5).

    Frozen features, which are float already, stay as they are.
    """
    return images if images.is_floating_point() else images.float().mul_(2 / 255).sub_(1)
