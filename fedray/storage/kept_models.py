"""The models of the best and the last round of a run: pins of its commits.

A pin holds the clients' states as they were tested, and under negative numbers their downloads. It
is called "best" or "last". A last round that is the best is pinned once, as the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedray.errors import UserError
from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder
from fedray.storage.state_files import Written
from fedray.storage.states import Commit, Pin

Which = Literal["best", "last"]
WHICH: tuple[Which, ...] = ("best", "last")
FIRST_DOWNLOAD = -2
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
        files: the files with the tensors of each download, numbered from `FIRST_DOWNLOAD` down.
        of_client: for each client, the position of its download; None without one.
    """

    facts: Sequence[Mapping[str, Any]]
    files: Sequence[Written]
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
        files=downloads.files,
        replaces=[name for name in WHICH if alone and name != which],
        max_bytes=max_bytes,
    )


class KeptModels:
    """Reader of the models of one round.

    Args:
        folder: the run's folder.
        which: the models to read; there must be some, see `kept_rounds`.

    Raises:
        UserError: if the models are damaged.
    """

    def __init__(self, folder: Path, which: Which) -> None:
        self.which = which
        self.path = RunFolder(folder).states / f"{which}.json"
        commit = Commit.read(self.path.parent, which)
        assert commit is not None
        self._commit = commit
        models = dict(commit.facts["models"])
        for name in ("image", "class_names"):
            models[name] = tuple(models[name])
        self.facts = ModelFacts(**models)

    def state(self, client: int) -> dict[str, Any] | None:
        """Return the tensors of a client's state; None if the client never ran a step."""
        return self._commit.find(client)

    def download(self, client: int) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
        """Return facts and tensors of a client's download; None without one."""
        position = self._commit.facts["of_client"][client]
        if position is None:
            return None
        tree = self._commit.find(FIRST_DOWNLOAD - position)
        assert tree is not None
        return self._commit.facts["downloads"][position], tree

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
    commits = {which: Commit.read(RunFolder(folder).states, which) for which in WHICH}
    return {which: c.facts["models"]["round"] for which, c in commits.items() if c is not None}
