"""The models of one round, exactly as they were tested: what each client kept, what it was sent.

    <out>/models/best/
        meta.json     the round, how it was chosen, classes, size of images; with its own checksum
        ...           states and payloads (`fedray.states.segments`), each with its checksum
    <out>/models/last/

A folder is written beside its place and renamed, so a torn one has no final name. Of large tensors
with the same content the first alone is stored: a global model that all clients were sent is one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, Literal

from fedray.core import ClientState, Payload
from fedray.files import write_json
from fedray.records import sealed
from fedray.states import (
    Place,
    SegmentWriter,
    check_state,
    damaged,
    put_together,
    read_sealed,
    read_state,
    taken_apart,
)

FORMAT = 1
META = "meta.json"
Which = Literal["best", "last"]


@dataclass(frozen=True)
class KeptFacts:
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
    """What one client was tested with.

    Attributes:
        client: its id.
        state: what it kept; None of a client that never stepped.
        down: what it was sent.
    """

    client: int
    state: ClientState | None
    down: Payload | None


class TooLarge(Exception):
    """The models take more bytes than they may."""


def models_folder(out: Path, which: Which) -> Path:
    """Where a run's kept models are."""
    return out / "models" / which


def keep(place: Path, facts: KeptFacts, tested: Iterable[Tested], most: float) -> int:
    """Write the models of one round, in place of those that are there.

    Args:
        place: their folder.
        facts: what is known of them.
        tested: of every client, in their order.
        most: the bytes that they may take.

    Returns:
        The bytes that they take.

    Raises:
        TooLarge: when they would take more; what was there before is left.
        OSError: when they cannot be written.
    """
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        writing = _Writing(temporary, most)
        for each in tested:
            writing.add(each)
        written = writing.close()
        tree = {"format": FORMAT, **asdict(facts), **writing.tree}
        write_json(temporary / META, sealed(tree))
        old = _set_aside(place)
        os.replace(temporary, place)  # at once: removing the old ones may take long
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written


def forget(place: Path) -> None:
    """Remove kept models, if there are any: at once under their name, whatever happens then."""
    shutil.rmtree(_set_aside(place), ignore_errors=True)


def _set_aside(place: Path) -> Path:
    """Give kept models, if there are any, a name that `remove_torn` knows."""
    old = place.with_name(f".{place.name}.old.{os.getpid()}.tmp")
    if place.exists():
        os.replace(place, old)
    return old


@dataclass
class _Writing:
    """Writes states and payloads, each payload once however many clients were sent it."""

    folder: Path
    most: float

    def __post_init__(self) -> None:
        self.tree: dict[str, Any] = {"states": [], "downs": [], "payloads": []}
        numbers = count()
        self._writer = SegmentWriter(self.folder, lambda: f"{next(numbers)}.tensors")
        self._payloads: dict[int, tuple[Payload, int]] = {}
        self._nothing: Place | None = None

    def add(self, tested: Tested) -> None:
        """Write what one client was tested with."""
        self.tree["states"].append(None if tested.state is None else self._state(tested.state))
        self.tree["downs"].append(None if tested.down is None else self._payload(tested.down))

    def close(self) -> int:
        """Close the files; the bytes in them."""
        self._writer.close()
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def _state(self, state: ClientState) -> Place:
        """Write a state without its optimiser; of those that keep nothing the first alone."""
        if state.model or state.memory:
            return self._put(ClientState(state.model, state.memory))
        self._nothing = self._nothing or self._put(ClientState({}))
        return self._nothing

    def _payload(self, down: Payload) -> int:
        if id(down) not in self._payloads:
            facts, tensors = taken_apart(down)
            entry = {**facts, "place": self._put(ClientState(tensors))}
            self._payloads[id(down)] = down, len(self.tree["payloads"])
            self.tree["payloads"].append(entry)
        return self._payloads[id(down)][1]

    def _put(self, state: ClientState) -> Place:
        place = self._writer.add(state)
        self.most -= place.length
        if self.most < 0:
            self._writer.close()
            raise TooLarge
        return place


class KeptModels:
    """The models of one round as `keep` wrote them.

    Args:
        folder: theirs.

    Attributes:
        facts: what is known of them.

    Raises:
        UserError: when they are damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / META
        self._tree = read_sealed(path, FORMAT, "load it with the version that wrote it")
        names = {each.name for each in fields(KeptFacts)}
        facts = {name: value for name, value in self._tree.items() if name in names}
        try:
            shape, classes = tuple(facts.pop("image")), tuple(facts.pop("class_names"))
            self.facts = KeptFacts(**facts, image=shape, class_names=classes)
        except (KeyError, TypeError) as error:
            raise damaged(path, error) from None

    def __iter__(self) -> Iterator[Tested]:
        return (self[client] for client in range(self.facts.clients))

    def __getitem__(self, client: int) -> Tested:
        """What one client was tested with; payloads' types must have been imported.

        Raises:
            UserError: when a file is damaged or missing.
        """
        state = self._read(self._tree["states"][client])
        index = self._tree["downs"][client]
        return Tested(client, state, None if index is None else self._payload(index))

    def _payload(self, index: int) -> Payload:
        entry = self._tree["payloads"][index]
        tensors = self._read(entry["place"])
        assert tensors is not None
        return put_together(entry, tensors.model, self.folder)

    def _read(self, place: list[Any] | None) -> ClientState | None:
        if place is None:
            return None
        file, offset, length, checksum, shared = place
        found = Place(file, offset, length, checksum, tuple(shared))
        check_state(self.folder, found)
        return read_state(self.folder, found)
