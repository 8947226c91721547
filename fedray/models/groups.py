"""Named groups of architectures, which are assigned to clients in turn.

FedTSP supplementary C.4; HtFLlib's groups HtFE2, HtFE3, HtFE4 and HtFE9.
"""

from dataclasses import dataclass

from fedray.base.errors import UserError
from fedray.config.registry import Registry, unknown
from fedray.models.architectures import architectures

HTFLLIB = "HtFLlib; FedTSP, CVPR 2026, supplementary C.4"
DEPTHS = (4, 6, 8, 10, 18, 34, 50, 101, 152)


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
    ("htfe2", "Two of different depth", ("cnn4", "resnet18")),
    ("htfe3", "Three ResNets", ("resnet10", "resnet18", "resnet34")),
    ("htfe4", "Four of different families", ("cnn4", "googlenet", "mobilenetv2", "resnet18")),
    ("htfe9", "Nine ResNets, of depth 4 to 152", (f"resnet{n}" for n in DEPTHS)),
):
    groups.add(Group(_name, _summary, tuple(_members), HTFLLIB))
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
    raise UserError(f"model.group: {unknown('model group or architecture', name, valid)}")


def assign_architectures(group: str, num_clients: int) -> tuple[str, ...]:
    """Return the architecture of each client: client i has number i mod X of a group of X."""
    members = group_of(group).members
    return tuple(members[i % len(members)] for i in range(num_clients))


def is_dense(group: str) -> bool:
    """Return True if the models of a group predict every pixel."""
    return any(architectures.get(name).dense for name in group_of(group).members)
