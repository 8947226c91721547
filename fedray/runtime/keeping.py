"""Keeps the models of a run's best round and of its last."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

from fedray.evaluation.protocols import HasGlobalModel
from fedray.federation import Federation
from fedray.kept import KeptFacts, Tested, TooLarge, Which, forget, keep, models_folder
from fedray.records import BEST, Round, RunFolder
from fedray.runtime.assembly import Assembly

log = logging.getLogger(__name__)


class ModelKeeper:
    """Writes models into a run's folder, as `keep.models` says.

    Args:
        assembly: the parts of the run.
        federation: of the same parts; it holds the models.
        folder: the run's.
        usual: what is kept where `keep.models` is not set.
    """

    def __init__(
        self,
        assembly: Assembly,
        federation: Federation,
        folder: RunFolder,
        usual: Literal["best", "none"],
    ) -> None:
        self._assembly = assembly
        self._federation = federation
        self._folder = folder
        self._which = assembly.experiment.keep.models or usual

    def after(self, done: Round, best: int | None, *, is_last: bool) -> None:
        """Keep the models of a round, if it is the best so far or the last.

        Args:
            done: the round; the federation is what it was after it.
            best: the best round so far, if any.
            is_last: whether there is no further one.

        Raises:
            OSError: when they cannot be written.
        """
        if best == done.round and self._which == "best":
            self._keep("best", done)
            forget(models_folder(self._folder.path, "last"))
        elif is_last and self._which != "none":
            self._keep("last", done)

    def _keep(self, which: Which, done: Round) -> None:
        place, most = models_folder(self._folder.path, which), self._assembly.experiment.keep.max_gb
        try:
            keep(place, self._facts(which, done), self._tested(), most * 1e9)
        except TooLarge:
            self._which = "none"
            for each in ("best", "last"):
                forget(models_folder(self._folder.path, each))
            log.warning(
                "the models of %d clients take more than keep.max_gb=%g GB, so they are not kept; "
                "raise it, or set keep.models=none",
                self._assembly.experiment.data.clients,
                most,
            )

    def _tested(self) -> Iterator[Tested]:
        """What every client was tested with."""
        states = self._federation.executor.states
        for sent in self._federation.sent():
            for client, down in sent.items():
                yield Tested(client, states.get(client), down)

    def _facts(self, which: Which, done: Round) -> KeptFacts:
        data, algorithm = self._assembly.data, self._assembly.algorithm
        state = self._federation.snapshot.server
        return KeptFacts(
            round=done.round,
            chosen=BEST[self._assembly.experiment.report.select] if which == "best" else "",
            metrics=done.metrics,
            identity=self._assembly.identity,
            image=data.images.shape,
            class_names=data.images.class_names,
            base=data.base,
            clients=self._assembly.experiment.data.clients,
            is_global=isinstance(algorithm, HasGlobalModel) and algorithm.has_global_model(state),
        )
