"""What a session writes: run.json, a line a round, and the states."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from fedray.core.payload import split_payload
from fedray.errors import UserError
from fedray.evaluation.metrics import declared_metrics
from fedray.evaluation.protocols import analysis_metrics, has_global_model
from fedray.federation import Federation
from fedray.plugins import write_copies
from fedray.runtime.assembly import Assembly
from fedray.runtime.memory import peak_rss
from fedray.storage.environment import environment
from fedray.storage.kept_models import FIRST_DOWNLOAD, Which
from fedray.storage.run import Costs, Round, Run, RunInfo
from fedray.storage.run_folder import RunFolder
from fedray.storage.state_files import Written
from fedray.storage.states import Pin, StateStore
from fedray.storage.writer import RunWriter
from fedray.trees import StateTree


class Records:
    """Writes the rounds and states of a run; nothing before the first round has succeeded.

    Args:
        folder: the run's folder.
        assembly: the parts of the run.
        states: the clients' states.
        earlier: the records of an interrupted run, cut at its checkpoint; None for a new run.
        began: when start-up began, in seconds since the epoch.
        usual: the models that are kept if `keep.models` is not set.
    """

    def __init__(
        self,
        folder: RunFolder,
        assembly: Assembly,
        states: StateStore,
        earlier: Run | None,
        began: float,
        usual: Literal["best", "none"],
    ) -> None:
        self._folder, self._assembly, self._states = folder, assembly, states
        self._earlier, self._began, self._usual = earlier, began, usual
        self._writer: RunWriter | None = None
        self._costs = Costs() if earlier is None else earlier.costs
        self._started = time.time() - self._costs.wall_seconds

    def opened(self) -> RunWriter:
        """Return the writer; first write the files that do not change between rounds."""
        if self._writer is None:
            assembly, folder = self._assembly, self._folder
            write_copies(folder.path, assembly.experiment.plugins)
            if self._earlier is None:
                folder.error.unlink(missing_ok=True)
            started = datetime.fromtimestamp(self._began, UTC)
            info = replace(run_info(assembly), started=started)
            self._writer = RunWriter(folder, info, assembly.data.manifest(), self._earlier)
        return self._writer

    def save(self, done: Round, federation: Federation) -> None:
        """Start a checkpoint if one is due after a round, or its models are kept.

        A run of a study, which keeps no models by itself, needs none after its last round.
        """
        writer, experiment = self.opened(), self._assembly.experiment
        every, is_over = experiment.checkpoint_every, done.round == experiment.rounds
        is_due = every > 0 and (self._usual != "none" if is_over else done.round % every == 0)
        keep: str = experiment.keep.models or self._usual
        which: Which | None = None
        if keep == "best" and writer.best == done.round:
            which = "best"
        elif keep != "none" and is_over:
            which = "last"
        if is_due or which:
            self._commit(federation, which)

    def resume(self, federation: Federation) -> None:
        """Keep the models of the best round so far if `keep.models=best` was not set before.

        Raises:
            UserError: if these models were not kept.
        """
        assert self._earlier is not None
        best, keep = self._earlier.best, self._assembly.experiment.keep.models or self._usual
        before = self._earlier.info.config["keep"]["models"] or self._usual
        if keep != "best" or before == "best" or best is None:
            return
        if best.round != self._earlier.done:
            raise UserError(
                f"keep.models was {before} when round {best.round}, the best so far, was run; "
                f"resume with keep.models={before}"
            )
        self._commit(federation, "best")

    def _commit(self, federation: Federation, which: Which | None) -> None:
        """Start a checkpoint, and pin its models."""
        writer, pin = self.opened(), None if which is None else self._pin(which, federation)
        # rounds may be ahead of states, never behind
        facts = {"rounds": writer.mark}
        self._states.commit(federation.snapshot, facts, pin, before=writer.flush)

    def costs(self, done: Round, device_bytes: int) -> Costs:
        """Return the run's costs after a round, in which a process used this much of a device."""
        before, now = self._costs, time.time()
        self._costs = Costs(
            wall_seconds=now - self._started,
            startup_seconds=before.startup_seconds if done.round else now - self._began,
            peak_rss_bytes=max(before.peak_rss_bytes, peak_rss()),
            peak_device_bytes=max(before.peak_device_bytes, device_bytes),
        )
        return self._costs

    def end(self) -> None:
        """Write that the run has ended, unless an earlier process has written it."""
        self._states.wait()
        if self._earlier is None or not self._folder.is_finished:
            self.opened().end()

    def close(self) -> None:
        """Wait until the last checkpoint is complete, and close the files."""
        try:
            self._states.wait()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _pin(self, which: Which, federation: Federation) -> Pin:
        """Return a pin of the models; downloads that clients share are stored once."""
        snapshot = federation.snapshot
        facts: list[Mapping[str, Any]] = []
        files: list[Written] = []
        of_client: list[int | None] = []
        for downloads in federation.sent():
            positions: dict[int, int | None] = {id(None): None}
            trees: dict[int, StateTree] = {}
            for down in downloads.values():
                if down is not None and id(down) not in positions:
                    positions[id(down)] = len(facts)
                    plain, trees[FIRST_DOWNLOAD - len(facts)] = split_payload(down)
                    facts.append(plain)
                of_client.append(positions[id(down)])
            files.append(self._states.write(trees))
        models = {
            "round": snapshot.round,
            "is_global": has_global_model(federation.algorithm, snapshot.server),
            "downloads": facts,
            "of_client": of_client,
        }
        return Pin(which, models, files)


def run_info(assembly: Assembly, retested: Mapping[str, Any] | None = None) -> RunInfo:
    """Return the facts that determine a run's numbers."""
    experiment, data = assembly.experiment, assembly.data
    return RunInfo(
        config=experiment.record(),
        identity=assembly.identity,
        environment=environment(experiment.threads),
        partition_sha256=data.sha256,
        data_sha256=data.images.sha256,
        metrics=(*declared_metrics(), *analysis_metrics(assembly.algorithm)),
        retested=retested,
        files_sha256=assembly.files,
        plugins=experiment.tree().get("plugins", ()),
    )
