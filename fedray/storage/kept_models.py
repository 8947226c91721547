"""The models of the best and the last round of a run: pins of its commits, "best" and "last".

A pin holds the clients' states as they were tested, and under negative numbers their downloads. A
last round that is the best is pinned once, as the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedray.storage.run import Round, Run
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import Commit

Which = Literal["best", "last"]
FIRST_DOWNLOAD = -2
"""The number of a pin's first download; further ones have the numbers below it."""


class KeptModels:
    """Reader of the models of one round.

    Args:
        which: the name of the pin.
        commit: the content of the pin. Its facts are `round`, `is_global` (all clients predict with
            one model), `downloads` (JSON values about each download) and `of_client` (for each
            client, the position of its download; None without one).
    """

    def __init__(self, which: Which, commit: Commit) -> None:
        self._commit, self.which = commit, which
        self.path = commit.folder
        self.round = int(commit.facts["round"])
        self.is_global = bool(commit.facts["is_global"])

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


def kept_models(folder: RunFolder, run: Run) -> dict[Which, KeptModels]:
    """Return the models that a run keeps, "best" first.

    If `keep.models` was changed before the run went on, what it does not ask for and what is no
    longer the best or last round is left out.

    Raises:
        UserError: if a pin is damaged.
    """
    found: dict[Which, KeptModels] = {}
    rounds: Mapping[Which, Round | None] = {"best": run.best, "last": run.final}
    for which, done in rounds.items():
        if which == "best" and run.info.config["keep"]["models"] == "last":
            continue
        commit = Commit.read(folder.states, which)
        at = None if done is None else done.round
        if commit is not None and (not run.is_finished or commit.facts["round"] == at):
            found[which] = KeptModels(which, commit)
    return found
