"""The models of the best and the last round of a run: pins of its snapshots.

A pin holds the clients' states as they were tested, and under further numbers their downloads. It
is called "best" or "last". A last round that is the best is pinned once, as the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedray.errors import UserError
from fedray.storage.checkpoint import PLACE
from fedray.storage.database import Entry, Pin, StateDatabase
from fedray.storage.run import Run

Which = Literal["best", "last"]
WHICH: tuple[Which, ...] = ("best", "last")
_FIRST_DOWNLOAD = -2
"""The number of a pin's first download; further ones have the numbers below it."""


@dataclass(frozen=True)
class ModelFacts:
    """Metadata of the kept models of one round.

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
class Downloads:
    """The downloads with which the clients of a round were tested.

    Attributes:
        facts: JSON values that describe each download.
        trees: the tensors of each download.
        of_client: for each client, the position of its download; None without one.
    """

    facts: Sequence[Mapping[str, Any]]
    trees: Sequence[Entry]
    of_client: Sequence[int | None]


def pin_of(
    which: Which, facts: ModelFacts, downloads: Downloads, max_bytes: float, *, alone: bool
) -> Pin:
    """Return the pin that keeps the models of a round; `alone` removes all other models."""
    return Pin(
        name=which,
        facts={
            "models": asdict(facts),
            "downloads": downloads.facts,
            "of_client": downloads.of_client,
        },
        entries={_FIRST_DOWNLOAD - n: tree for n, tree in enumerate(downloads.trees)},
        replaces=WHICH if alone else (which,),
        max_bytes=max_bytes,
    )


class KeptModels:
    """Reader of the models of one round.

    Args:
        folder: the run's folder, or one made by `export`.
        which: the models to read; there must be some, see `kept_rounds`.

    Raises:
        UserError: if the models are damaged.
    """

    def __init__(self, folder: Path, which: Which) -> None:
        self.which = which
        self._database = StateDatabase(folder / PLACE)
        self.path = self._database.path
        self._pin = self._database.snapshots()[which]
        models = dict(self._pin["models"])
        for name in ("image", "class_names"):
            models[name] = tuple(models[name])
        self.facts = ModelFacts(**models)

    def state(self, client: int) -> dict[str, Any] | None:
        """Return the tensors of a client's state; None if the client never ran a step."""
        return self._database.find(client, self.which)

    def download(self, client: int) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
        """Return facts and tensors of a client's download; None without one."""
        position = self._pin["of_client"][client]
        if position is None:
            return None
        tree = self._database.read(_FIRST_DOWNLOAD - position, self.which)
        return self._pin["downloads"][position], tree

    def check(self, run: Run) -> None:
        """Raise `UserError` if the models are not those of the run in whose folder they are."""
        summary = run.best if self.which == "best" else run.final
        if self.facts.identity != run.info.identity:
            wrong = "belong to another run"
        elif run.is_finished and summary is not None and self.facts.round != summary.round:
            wrong = f"are of round {self.facts.round}, not of round {summary.round}"
        else:
            return
        raise UserError(
            f"the {self.which} models in {self.path} {wrong}; set keep.models again as "
            "it was before the run was resumed, or restore them from a copy"
        )


def kept_rounds(folder: Path) -> dict[Which, int]:
    """Return the rounds of the models that a run keeps, "best" first."""
    database = StateDatabase(folder / PLACE)
    snapshots = database.snapshots()
    database.close()
    return {which: snapshots[which]["models"]["round"] for which in WHICH if which in snapshots}
