"""Save and load the models of one round, exactly as they were tested.

    <out>/models/best/
        states.sqlite     the round, how it was chosen, classes, size of images; small tensors
        states/           large tensors (`fedray.storage.database`)
    <out>/models/last/

Each model is stored as the client's state and the client's download. A folder is written under a
temporary name and renamed when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedray.core import ClientState, Payload, StateTree
from fedray.core.payload import join_payload, split_payload
from fedray.errors import UserError
from fedray.storage.database import StateDatabase
from fedray.storage.run import Run
from fedray.storage.tensors import damaged, tree_bytes

Which = Literal["best", "last"]
WHICH: tuple[Which, ...] = ("best", "last")


@dataclass(frozen=True)
class ModelFacts:
    """Metadata of the saved models of one round.

    Attributes:
        round: the round after which the models were tested.
        chosen: how the round was chosen, as a text for people; "" for the last round.
        metrics: the metrics of the round, by name.
        identity: hash of the experiment and its data.
        image: channels, height and width of the models' input images.
        class_names: the names of all classes, in the order of their labels.
        base: number of leading classes that were trained on; None if all were.
        clients: number of clients N.
        is_global: True if all clients predict with one model.
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
    """The model of one tested client.

    Attributes:
        client: the client's id.
        state: the client's state; None if the client never ran a step.
        down: the client's download; None without one.
    """

    client: int
    state: ClientState | None
    down: Payload | None


class TooLarge(Exception):
    """The models take more bytes than allowed."""


def models_folder(out: Path, which: Which) -> Path:
    """Return the folder of a run's saved models."""
    return out / "models" / which


def save_models(place: Path, facts: ModelFacts, tested: Iterable[Tested], most: float) -> None:
    """Write the models of one round, replacing those of an earlier one.

    Args:
        place: the folder of the models.
        facts: the metadata of the models.
        tested: the model of every client, in client order.
        most: maximal number of bytes of all tensors.

    Raises:
        TooLarge: if the tensors take more bytes; earlier models are kept.
        OSError: if the models cannot be written.
    """
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    index: dict[str, Any] = {"models": asdict(facts), "downs": [], "payloads": []}
    try:
        trees = _trees(facts.clients, tested, index, most)
        StateDatabase(temporary, lasting=False).save(index, trees)
        old = _set_aside(place)
        os.replace(temporary, place)  # before the old models are removed, which may take long
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def forget_models(place: Path) -> None:
    """Remove saved models, if any, in one step."""
    shutil.rmtree(_set_aside(place), ignore_errors=True)


def _set_aside(place: Path) -> Path:
    """Rename saved models, if any, to a temporary name that `remove_torn` recognises."""
    old = place.with_name(f".{place.name}.old.{os.getpid()}.tmp")
    if place.exists():
        os.replace(place, old)
    return old


def _trees(
    clients: int, tested: Iterable[Tested], index: dict[str, Any], most: float
) -> Iterator[tuple[int, StateTree]]:
    """Yield client states by client id and payloads by further numbers; fill `index`.

    A payload that several clients share is yielded once.
    """
    numbers: dict[int, tuple[Payload, int]] = {}  # keeps the payloads alive, so that ids are unique
    for model in tested:
        new: dict[int, StateTree] = {}
        if model.state is not None:  # the optimiser's state is not needed for predictions
            new[model.client] = {"model": model.state.model, "memory": model.state.memory}
        if model.down is not None and id(model.down) not in numbers:
            numbers[id(model.down)] = model.down, clients + len(numbers)
            plain, new[clients + len(index["payloads"])] = split_payload(model.down)
            index["payloads"].append(plain)
        index["downs"].append(None if model.down is None else numbers[id(model.down)][1])
        most -= sum(map(tree_bytes, new.values()))
        if most < 0:
            raise TooLarge
        yield from new.items()


def lost_models(out: Path, run: Run, usual: str = "best") -> str:
    """Return a sentence if the models of a run's best round are missing; "" otherwise.

    Args:
        out: the folder of the run.
        run: the run, up to its checkpoint.
        usual: the models that are saved if `keep.models` is not set.
    """
    best, keep = models_folder(out, "best"), run.info.config.get("keep", {})
    wanted = keep.get("models") or usual
    if wanted != "best" or run.best is None or best.is_dir():
        return ""
    return (
        f"{best} is missing, the models of the best round, {run.best.round}; restore it from a copy"
    )


def check_models(place: Path, facts: ModelFacts, run: Run) -> None:
    """Raise `UserError` if saved models are not those of the run in whose folder they are."""
    summary = run.best if place.name == "best" else run.final
    if facts.identity != run.info.identity:
        wrong = "belongs to another run"
    elif run.is_finished and summary is not None and facts.round != summary.round:
        wrong = f"holds the models of round {facts.round}, not of round {summary.round}"
    else:
        return
    raise UserError(f"{place} {wrong}; restore it from a copy")


def verify_models(out: Path, run: Run, usual: str) -> str:
    """Verify all saved models of a run; arguments and return value as of `lost_models`.

    Raises:
        UserError: if models are damaged, or of another run.
    """
    for which in WHICH:
        place = models_folder(out, which)
        if place.is_dir():
            StateDatabase(place).load()
            check_models(place, SavedModels(place).facts, run)
    return lost_models(out, run, usual)


class SavedModels:
    """Reader of the models that `save_models` wrote.

    Raises:
        UserError: if the models are damaged, missing or of another version.
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
        """Return the model of one client; the types of payloads must have been imported."""
        state = self._database.find(client)
        number, down = self._index["downs"][client], None
        if number is not None:
            plain = self._index["payloads"][number - self.facts.clients]
            down = join_payload(plain, self._database.read(number), self._database.path)
        return Tested(client, None if state is None else ClientState(**state), down)
