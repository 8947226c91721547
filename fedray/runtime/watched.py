"""Whether a test looked at the round: one that did not has the same score in every round.

Which tests do is not declared but seen: a method, or a user's metric, that forgot to say so would
keep a score that is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedray.core import Client, TrainingConfig


def watched(client: Client, looked: list[str]) -> Client:
    """The client for a test; what the test reads of it that rounds change is noted.

    Args:
        client: the client in its round.
        looked: takes the names of what is read: the round itself, or its learning rate. To copy
            what has them reads them.
    """
    training = _WatchedTraining(**vars(client.setting.training), looked=looked)
    setting = replace(client.setting, training=training)
    return _WatchedClient(**{**vars(client), "setting": setting}, looked=looked)


@dataclass(frozen=True)
class _WatchedClient(Client):
    """Notes that the round was read."""

    looked: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> Any:
        if name == "round":
            self.looked.append(name)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class _WatchedTraining(TrainingConfig):
    """Notes that the learning rate was read."""

    looked: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> Any:
        if name == "lr":
            self.looked.append(name)
        return super().__getattribute__(name)
