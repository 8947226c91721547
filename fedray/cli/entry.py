"""What a listing tells of a registered name, and the kinds of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "algorithms": "algorithm",
        "optimizers": "optimizer",
        "schedules": "learning rate schedule",
        "architectures": "architecture",
        "groups": "model group",
        "clips": "CLIP",
        "sources": "data source",
        "partitions": "partition",
        "evolutions": "data evolution",
        "publics": "public data",
        "augmentations": "augmentation",
        "encoders": "text encoder",
        "styles": "text style",
        "metrics": "metric",
    }
)
"""The listings and the kind of registry behind each."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry.

    Attributes:
        name: the key in an experiment file.
        type: the Python type.
        default: the default as in YAML; "" if the parameter is required.
        bounds: bounds such as "> 0"; "" without bounds.
        text: the docstring.
    """

    name: str
    type: str
    default: str
    bounds: str
    text: str


@dataclass(frozen=True)
class Entry:
    """A registered name: a method, model, data source, metric and so on.

    Attributes:
        name: the name in an experiment file.
        title: the name in the paper, or `name`.
        summary: one line.
        paper: authors, venue, arXiv number; "-" without a paper.
        travels: what a method sends; "" for other kinds.
        file: the source file, relative to the package; "" for plug-ins.
        parameters: its typed parameters.
        gives: the numbers that a metric computes, with their meaning; empty for other kinds.
        stacked: "yes", or why a method does not support stacked clients; "" for other kinds.
    """

    name: str
    title: str
    summary: str
    paper: str
    travels: str
    file: str
    parameters: tuple[Parameter, ...]
    gives: tuple[str, ...] = ()
    stacked: str = ""
