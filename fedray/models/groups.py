"""Which client trains what: named groups of architectures, assigned to the clients in turn.

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
    """Architectures that the clients of one experiment train.

    Attributes:
        name: what an experiment calls it.
        summary: one line about it.
        members: names of its X architectures, in the order of assignment.
        paper: where it comes from; "-" for fedray's groups.
    """

    name: str
    summary: str
    members: tuple[str, ...]
    paper: str = "-"


groups: Registry[Group] = Registry("model group", "fedray.models.groups")
"""Every group of several architectures by its name; see `group_of` for those of one."""

groups.add(Group("htfe2", "Two of unlike depth", ("cnn4", "resnet18"), HTFLLIB))
groups.add(Group("htfe3", "Three ResNets", ("resnet10", "resnet18", "resnet34"), HTFLLIB))
groups.add(
    Group(
        "htfe4",
        "Four of unlike families",
        ("cnn4", "googlenet", "mobilenetv2", "resnet18"),
        HTFLLIB,
    )
)
groups.add(
    Group(
        "htfe9",
        "Nine ResNets, of depth 4 to 152",
        tuple(f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152)),
        HTFLLIB,
    )
)
groups.add(Group("digits", "Two for 8x8 images on a CPU", ("mlp", "cnn2")))
groups.add(Group("pair", "Two for CIFAR on few cores", ("cnn2", "resnet4")))
groups.add(Group("small", "Four for CIFAR on a CPU", ("cnn4", "cnn3", "resnet4", "resnet8s")))


def group_of(name: str) -> Group:
    """Return the group of a name; an architecture is a group of one by its name.

    Raises:
        UserError: if there is neither; the message names the nearest one.
    """
    if name in groups.names():
        return groups.get(name)
    if name in architectures.names():
        only = architectures.get(name)
        return Group(name, only.summary, (name,), only.paper)
    known = [*groups.names(), *architectures.names()]
    error = unknown("model group or architecture", name, known)
    raise UserError(f"model.group: {error}")


def assign_architectures(group: str, num_clients: int) -> tuple[str, ...]:
    """Assign a group's X architectures to the clients: client i gets number i mod X.

    Args:
        group: a name that `group_of` knows.
        num_clients: how many clients, at least 1.

    Returns:
        One architecture name per client, in client order.

    Raises:
        UserError: the group is unknown, or there is no client.
    """
    members = group_of(group).members
    if num_clients < 1:
        raise UserError(f"data.clients: found {num_clients} clients, need at least 1.")
    return tuple(members[i % len(members)] for i in range(num_clients))


def is_dense(group: str) -> bool:
    """Return True if a group's models predict every pixel; those of one group are of one kind.

    Raises:
        UserError: as `group_of`.
    """
    return any(architectures.get(name).dense for name in group_of(group).members)
