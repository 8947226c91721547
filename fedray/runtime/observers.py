"""What a session does after a round: records, snapshots."""

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
from fedray.runtime.privacy import privacy_statement
from fedray.runtime.resume import resumed_info
from fedray.storage.environment import environment
from fedray.storage.kept_models import FIRST_DOWNLOAD, Which
from fedray.storage.run import Costs, Round, Run, RunInfo
from fedray.storage.run_folder import RunFolder
from fedray.storage.state_files import Written
from fedray.storage.states import Pin, StateStore
from fedray.storage.writer import RunWriter
from fedray.trees import Snapshot, StateTree


class Records:
    """Writes the records of a run; nothing is written before the first round has succeeded.

    Args:
        folder: the run's folder.
        assembly: the parts of the run.
        info: the facts that determine the run's numbers.
        earlier: the records of an interrupted run, cut at its checkpoint; None for a new run.
        began: when start-up began, in seconds since the epoch.

    Attributes:
        writer: the writer of rounds; None before the first round of this process.
    """

    def __init__(
        self,
        folder: RunFolder,
        assembly: Assembly,
        info: RunInfo,
        earlier: Run | None,
        began: float,
    ) -> None:
        self.writer: RunWriter | None = None
        self._folder, self._assembly, self._earlier = folder, assembly, earlier
        self._began, self._started = began, time.time()
        self._info = info
        self._costs = earlier.costs if earlier is not None else Costs()
        self._spent = self._costs.wall_seconds

    def opened(self) -> RunWriter:
        """Return the writer; first write the files that do not change between rounds."""
        self.writer = self.writer or self._open()
        return self.writer

    def costs(self, done: Round, device_bytes: int) -> Costs:
        """Return the run's costs after a round, in which a process used this much of a device."""
        if done.round == 0:
            self._costs = replace(self._costs, startup_seconds=time.time() - self._began)
        self._costs = replace(
            self._costs,
            wall_seconds=self._spent + time.time() - self._started,
            peak_rss_bytes=max(self._costs.peak_rss_bytes, peak_rss()),
            peak_device_bytes=max(self._costs.peak_device_bytes, device_bytes),
        )
        return self._costs

    def end(self) -> None:
        """Write that the run has ended, unless an earlier process has written it."""
        if self.writer is None and self._earlier is not None and not self._folder.is_finished:
            # the earlier process was killed after its last checkpoint
            info, partition = self._folder.read_head(), self._folder.partition()
            self.writer = RunWriter(self._folder, info, partition, self._earlier)
        if self.writer is not None:
            self.writer.end()

    def close(self) -> None:
        """Close the files."""
        if self.writer is not None:
            self.writer.close()

    def _open(self) -> RunWriter:
        info, folder, experiment = self._info, self._folder, self._assembly.experiment
        write_copies(folder.path, experiment.plugins)
        if self._earlier is None:
            folder.error.unlink(missing_ok=True)
        else:
            info = resumed_info(info, self._earlier, folder)
        info = replace(info, started=datetime.fromtimestamp(self._began, UTC))
        return RunWriter(folder, info, self._assembly.data.manifest(), self._earlier)


class Snapshots:
    """Writes checkpoints in the background, and pins those whose models are kept.

    Args:
        store: the states of the run.
        assembly: the parts of the run.
        federation: the run's federation.
        records: the records of the run.
        usual: the models that are kept if `keep.models` is not set.
    """

    def __init__(
        self,
        store: StateStore,
        assembly: Assembly,
        federation: Federation,
        records: Records,
        usual: Literal["best", "none"],
    ) -> None:
        self._store, self._assembly, self._federation = store, assembly, federation
        self._records = records
        self._usual = usual
        self._keep = assembly.experiment.keep.models or usual

    def resume(self, snapshot: Snapshot, earlier: Run) -> None:
        """Keep the models of the best round so far if `keep.models=best` was not set before.

        Raises:
            UserError: if these models were not kept.
        """
        best, before = earlier.best, earlier.info.config["keep"]["models"] or self._usual
        if self._keep != "best" or before == "best" or best is None:
            return
        if best.round != snapshot.round:
            raise UserError(
                f"keep.models was {before} up to round {snapshot.round}, so the models of the best "
                f"round so far, {best.round}, are gone; resume with keep.models={before}"
            )
        self._federation.snapshot = snapshot
        self._commit(self._records.opened(), self._pin("best"))

    def after_round(self, done: Round) -> None:
        """Start a checkpoint if one is due or the models are kept, after the previous one.

        A run of a study, which keeps no models by itself, needs none after its last round.
        """
        writer = self._records.writer
        assert writer is not None  # `Records` has written this round
        every = self._assembly.experiment.checkpoint_every
        is_over = done.round == self._assembly.experiment.rounds
        is_due = every > 0 and (self._usual != "none" if is_over else done.round % every == 0)
        which: Which | None = None
        if self._keep == "best" and writer.best == done.round:
            which = "best"
        elif self._keep != "none" and is_over:
            which = "last"
        if is_due or which:
            self._commit(writer, self._pin(which) if which else None)

    def _commit(self, writer: RunWriter, pin: Pin | None) -> None:
        facts = {
            "identity": self._assembly.identity,
            "rounds": writer.mark,
        }
        # rounds may be ahead of states, never behind
        self._store.commit(self._federation.snapshot, facts, pin, before=writer.flush)

    def close(self) -> None:
        """Wait until the last checkpoint is complete."""
        self._store.wait()

    def _pin(self, which: Which) -> Pin:
        """Return a pin of the models; downloads that clients share are stored once."""
        algorithm, snapshot = self._federation.algorithm, self._federation.snapshot
        facts: list[Mapping[str, Any]] = []
        files: list[Written] = []
        of_client: list[int | None] = []
        for downloads in self._federation.sent():
            positions: dict[int, int | None] = {id(None): None}
            trees: dict[int, StateTree] = {}
            for down in downloads.values():
                if down is not None and id(down) not in positions:
                    positions[id(down)] = len(facts)
                    plain, trees[FIRST_DOWNLOAD - len(facts)] = split_payload(down)
                    facts.append(plain)
                of_client.append(positions[id(down)])
            files.append(self._store.write(trees))
        models = {
            "round": snapshot.round,
            "is_global": has_global_model(algorithm, snapshot.server),
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
        privacy=privacy_statement(experiment),
        retested=retested,
        files_sha256=assembly.files,
        plugins=experiment.tree().get("plugins", ()),
    )
