"""Named groups of architectures, which are assigned to clients in turn.

FedTSP supplementary C.4; HtFLlib's groups HtFE2, HtFE3, HtFE4 and HtFE9.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedray.errors import UserError
from fedray.models.architectures import architectures
from fedray.registry import Registry, unknown

HTFLLIB = "HtFLlib; FedTSP, CVPR 2026, supplementary C.4"


@dataclass(frozen=True)
class Group:
    """A group of architectures for the clients of one experiment.

    Attributes:
        name: the name in `model.group`.
        summary: a one-line description.
        members: the names of the X architectures, in the order of assignment.
        paper: the source; "-" for fedray's groups.
        version: the version of the group; raised by a commit that changes its members.
    """

    name: str
    summary: str
    members: tuple[str, ...]
    paper: str = "-"
    version: int = 1


groups: Registry[Group] = Registry("model group", "fedray.models.groups")
"""All groups of several architectures by name; `group_of` also knows single architectures."""

for _name, _summary, _members in (
    ("htfe2", "Two of different depth", "cnn4 resnet18"),
    ("htfe3", "Three ResNets", "resnet10 resnet18 resnet34"),
    ("htfe4", "Four of different families", "cnn4 googlenet mobilenetv2 resnet18"),
    (
        "htfe9",
        "Nine ResNets, of depth 4 to 152",
        "resnet4 resnet6 resnet8 resnet10 resnet18 resnet34 resnet50 resnet101 resnet152",
    ),
):
    groups.add(Group(_name, _summary, tuple(_members.split()), HTFLLIB))
groups.add(Group("digits", "Two for 8x8 images on a CPU", ("mlp", "cnn2")))
groups.add(Group("pair", "Two for CIFAR on few cores", ("cnn2", "resnet4")))
groups.add(Group("small", "Four for CIFAR on a CPU", ("cnn4", "cnn3", "resnet4", "resnet8s")))


def group_of(name: str) -> Group:
    """Return the group of a name, or a group of the single architecture of this name.

    Raises:
        UserError: if neither exists; the message suggests the nearest name.
    """
    if name in groups.names():
        return groups.get(name)
    if name in architectures.names():
        only = architectures.get(name)
        return Group(name, only.summary, (name,), only.paper)
    valid = [*groups.names(), *architectures.names()]
    error = unknown("model group or architecture", name, valid)
    raise UserError(f"model.group: {error}")


def assign_architectures(group: str, num_clients: int) -> tuple[str, ...]:
    """Assign a group's X architectures to clients: client i gets number i mod X.

    Args:
        group: the name of a group or an architecture.
        num_clients: number of clients, at least 1.

    Returns:
        One architecture name per client, in client order.

    Raises:
        UserError: if the group is unknown, or there is no client.
    """
    members = group_of(group).members
    if num_clients < 1:
        raise UserError(f"data.clients: found {num_clients} clients, need at least 1.")
    return tuple(members[i % len(members)] for i in range(num_clients))


def is_dense(group: str) -> bool:
    """Return True if the models of a group predict every pixel.

    Raises:
        UserError: as `group_of`.
    """
    return any(architectures.get(name).dense for name in group_of(group).members)
