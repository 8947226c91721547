"""Who trains what: named groups of architectures, dealt to the clients in turn.

FedTSP supplementary C.4; HtFLlib's groups HtFE2, HtFE3, HtFE4 and HtFE9.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from fedray.errors import UserError
from fedray.models.backbones import ARCHITECTURES

__all__ = ["GROUPS", "architectures", "is_dense"]

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "htfe2": ("cnn4", "resnet18"),
        "htfe3": ("resnet10", "resnet18", "resnet34"),
        "htfe4": ("cnn4", "googlenet", "mobilenetv2", "resnet18"),
        "htfe9": (
            "resnet4",
            "resnet6",
            "resnet8",
            "resnet10",
            "resnet18",
            "resnet34",
            "resnet50",
            "resnet101",
            "resnet152",
        ),
        "digits": ("mlp", "cnn2"),
        "small": ("cnn4", "cnn3", "resnet4", "resnet8s"),
        **{name: (name,) for name in ARCHITECTURES},
    }
)
"""Architectures by group; each single architecture is a group of one by its own name.

`digits` is for 8x8 images and `small` for CIFAR, both on a CPU.
"""


def architectures(group: str, num_clients: int) -> tuple[str, ...]:
    """Deal a group's X architectures to the clients: client i gets number i mod X.

    Args:
        group: a key of `GROUPS`.
        num_clients: how many clients, at least 1.

    Returns:
        One architecture name per client, in client order.

    Raises:
        UserError: the group is unknown, or there is no client.
    """
    if group not in GROUPS:
        # a low cutoff: some suggestion is always more use than none
        nearest = get_close_matches(group.lower(), GROUPS, n=1, cutoff=0.0)[0]
        raise UserError(
            f"model.group: unknown group {group!r}, did you mean {nearest!r}? "
            f"Known: {', '.join(GROUPS)}."
        )
    if num_clients < 1:
        raise UserError(f"data.clients: found {num_clients} clients, need at least 1.")
    members = GROUPS[group]
    return tuple(members[i % len(members)] for i in range(num_clients))


def is_dense(group: str) -> bool:
    """Whether a known group's models predict every pixel; those of one group are of one kind."""
    return any(ARCHITECTURES[name].dense for name in GROUPS[group])
