"""The models of one round, exactly as they were tested: what each client kept, what it was sent.

    <out>/models/best/
        states.sqlite     the round, how it was chosen, classes, size of images; small tensors
        states/           large tensors (`fedray.states.database`)
    <out>/models/last/

A folder is written under another name and renamed, so an incomplete one has no final name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedray.core import ClientState, Payload, StateTree
from fedray.states import StateDatabase, damaged, join_payload, split_payload, tree_bytes

Which = Literal["best", "last"]


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a round's models besides their tensors.

    Attributes:
        round: after which they were tested.
        chosen: how the round was chosen, for people; "" of the last one.
        metrics: of that round, by name.
        identity: hash of the experiment and its data.
        image: channels, height and width of what the models see.
        class_names: of all classes; their order is the labels'.
        base: how many of them, the first ones, were trained on; None for all.
        clients: N.
        is_global: whether all clients predict with one model.
    """

    round: int
    chosen: str
    metrics: Mapping[str, float]
    identity: str
    image: tuple[int, int, int]
    class_names: tuple[str, ...]
    base: int | None
    clients: int
    is_global: bool


@dataclass(frozen=True)
class Tested:
    """What one client was tested with: its state, if it ever stepped, and what it was sent."""

    client: int
    state: ClientState | None
    down: Payload | None


class TooLarge(Exception):
    """The models take more bytes than they may."""


def models_folder(out: Path, which: Which) -> Path:
    """Return the folder of a run's saved models."""
    return out / "models" / which


def save_models(place: Path, facts: ModelFacts, tested: Iterable[Tested], most: float) -> None:
    """Write the models of one round, and replace earlier ones.

    Args:
        place: their folder.
        facts: what is known of them.
        tested: of every client, in their order.
        most: the bytes that their tensors may take.

    Raises:
        TooLarge: if they would take more; what was there before is left.
        OSError: if they cannot be written.
    """
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    index: dict[str, Any] = {"models": asdict(facts), "downs": [], "payloads": []}
    try:
        trees = _trees(facts.clients, tested, index, most)
        StateDatabase(temporary, lasting=False).save(index, trees)
        old = _set_aside(place)
        os.replace(temporary, place)  # at once: removing the old ones may take long
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def forget_models(place: Path) -> None:
    """Remove saved models, if there are any; the folder's name disappears at once."""
    shutil.rmtree(_set_aside(place), ignore_errors=True)


def _set_aside(place: Path) -> Path:
    """Give saved models, if there are any, a name that `remove_torn` knows."""
    old = place.with_name(f".{place.name}.old.{os.getpid()}.tmp")
    if place.exists():
        os.replace(place, old)
    return old


def _trees(
    clients: int, tested: Iterable[Tested], index: dict[str, Any], most: float
) -> Iterator[tuple[int, StateTree]]:
    """Yield states by client, then payloads, each once however many clients were sent it."""
    numbers: dict[int, tuple[Payload, int]] = {}  # holds the payloads, so that no id comes again
    for each in tested:
        new: dict[int, StateTree] = {}
        if each.state is not None:  # without the optimiser's means
            new[each.client] = {"model": each.state.model, "memory": each.state.memory}
        if each.down is not None and id(each.down) not in numbers:
            numbers[id(each.down)] = each.down, clients + len(numbers)
            plain, new[clients + len(index["payloads"])] = split_payload(each.down)
            index["payloads"].append(plain)
        index["downs"].append(None if each.down is None else numbers[id(each.down)][1])
        most -= sum(map(tree_bytes, new.values()))
        if most < 0:
            raise TooLarge
        yield from new.items()


class SavedModels:
    """The models of one round as `save_models` wrote them.

    Raises:
        UserError: if they are damaged, missing or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self._database = StateDatabase(folder)
        index = self._database.facts()
        if index is None:
            raise damaged(self._database.path, FileNotFoundError())
        models = index["models"]
        shape, classes = tuple(models.pop("image")), tuple(models.pop("class_names"))
        self._index = index
        self.facts = ModelFacts(**models, image=shape, class_names=classes)

    def __iter__(self) -> Iterator[Tested]:
        return (self[client] for client in range(self.facts.clients))

    def __getitem__(self, client: int) -> Tested:
        """Return what one client was tested with; payloads' types must have been imported."""
        state = self._database.find(client)
        number, down = self._index["downs"][client], None
        if number is not None:
            plain = self._index["payloads"][number - self.facts.clients]
            down = join_payload(plain, self._database.read(number), self._database.path)
        return Tested(client, None if state is None else ClientState(**state), down)
