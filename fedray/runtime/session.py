"""One run in one folder: assemble its parts, resume, run, and record every round and the states."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from fedray.base.errors import ClientError, CodeError, Failure, RunFailed, ServerError, UserError
from fedray.base.trees import Snapshot, StateTree
from fedray.config import Experiment
from fedray.core.payload import split_payload
from fedray.evaluation.metrics import declared_metrics
from fedray.evaluation.protocols import analysis_metrics, has_global_model
from fedray.federation import Executor, Federation
from fedray.plugins import use, write_copies
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    device_of_this_process,
    free_memory,
    is_out_of_memory,
    out_of_memory,
)
from fedray.runtime.isolation import OwnFlags
from fedray.runtime.memory import peak_device_memory, peak_rss
from fedray.runtime.privacy import accountant_of
from fedray.runtime.resume import check_same, load_checkpoint
from fedray.storage.claim import claimed
from fedray.storage.environment import environment
from fedray.storage.files import explain_disk_full
from fedray.storage.kept_models import FIRST_DOWNLOAD, Which
from fedray.storage.run import Costs, Round, Run, RunInfo
from fedray.storage.run_folder import RunFolder
from fedray.storage.state_files import Written
from fedray.storage.states import Pin, StateStore
from fedray.storage.writer import RunWriter


class Session:
    """One federated run and its folder.

    The session claims the folder, and checks that it is writable, before any computation.

    Args:
        experiment: the experiment to run.
        out: the run's folder; a run of the same experiment in the folder resumes from its
            checkpoint.
        make_executor: returns the executor for the assembled parts.
        began: when start-up began, in seconds since the epoch; for the start-up time.
        keeps: which models are saved if `keep.models` is not set.

    Raises:
        UserError: if the folder cannot be written, holds another experiment or is damaged, or if
            a file or package is missing.
        CodeError: for any other error; it names the file with the traceback.
    """

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        make_executor: Callable[[Assembly], Executor],
        began: float | None = None,
        keeps: Literal["best", "none"] = "best",
    ) -> None:
        self.experiment = experiment
        self._usual = keeps
        self._folder = RunFolder(out)
        self._began = time.time() if began is None else began
        self._flags = OwnFlags()
        self._device = device_of_this_process(experiment.server_gpus, "the server", "server_gpus")
        self._writer: RunWriter | None = None
        self._claim = ExitStack()
        self._claim.enter_context(claimed(out))
        try:
            with keep_tracebacks(self._folder, self._device):
                self._before = self._folder.read() if self._folder.has_run else None
                torch.set_num_threads(experiment.threads)
                self._assembly = Assembly(experiment)
                if self._before is not None:
                    check_same(self._folder, self._before.info, self._assembly)
                self._executor = make_executor(self._assembly)
                self._states = StateStore(self._folder.states)
        except BaseException:
            self._claim.close()
            raise
        finally:
            self._flags.leave()

    def rounds(self) -> Generator[Round, None, None]:
        """Yield each round; after a resume, only the new ones.

        Nothing is written before the first round has succeeded. A round's checkpoint is written
        during the next round; it is complete before that next round is yielded, or when the
        iterator is closed. An error that stops the run leaves its traceback in the folder.

        Raises:
            UserError: if files of an earlier process in the folder are damaged.
            RunFailed: if the disk is full.
            CodeError: if code that the run calls raised an error; it names the file with the
                traceback. For a client's error it is a `ClientError`.
        """
        self._flags.enter()
        try:
            with keep_tracebacks(self._folder, self._device):
                of_run = self._folder, self._before, self._states, self._assembly
                snapshot, self._earlier = load_checkpoint(*of_run)
                try:
                    yield from self._run(snapshot)
                    self._end()
                finally:
                    self._close_files()
                self._executor.close()
                self._states.tidy()
        finally:
            self._executor.close()
            self._claim.close()
            self._flags.leave()

    def _run(self, snapshot: Snapshot | None) -> Generator[Round, None, None]:
        experiment, a, earlier = self.experiment, self._assembly, self._earlier
        self._executor.states = self._states
        self._costs = Costs() if earlier is None else earlier.costs
        self._started = time.time() - self._costs.wall_seconds
        accountant = accountant_of(experiment, a.plan, () if earlier is None else earlier.rounds)
        server = a.server(self._device)
        self._federation = Federation(
            a.algorithm, self._executor, a.gate, a.plan, server, accountant
        )
        rounds = self._federation.rounds(snapshot)
        if snapshot is not None and earlier is not None and not earlier.is_finished:
            self._federation.snapshot = snapshot
            self._keep_best_so_far(earlier)
        while True:
            use(experiment.plugins)  # another run of this process may have used others
            if (done := next(rounds, None)) is None:
                break
            self._opened().append(done, self._costs_after(done))
            self._save(done)
            self._flags.leave()
            yield done
            self._flags.enter()

    # --- what is written --------------------------------------------------------------------------

    def _opened(self) -> RunWriter:
        """Return the writer; first write the files that do not change between rounds."""
        if self._writer is None:
            assembly, folder = self._assembly, self._folder
            write_copies(folder.path, self.experiment.plugins)
            if self._earlier is None:
                folder.error.unlink(missing_ok=True)
            started = datetime.fromtimestamp(self._began, UTC)
            info = replace(run_info(assembly), started=started)
            self._writer = RunWriter(folder, info, assembly.data.manifest(), self._earlier)
        return self._writer

    def _save(self, done: Round) -> None:
        """Start a checkpoint if one is due after a round, or its models are kept.

        A run of a study, which keeps no models by itself, needs none after its last round.
        """
        e, keep = self.experiment, self.experiment.keep.models or self._usual
        every, is_over = e.checkpoint_every, done.round == e.rounds
        is_due = every > 0 and (self._usual != "none" if is_over else done.round % every == 0)
        if keep == "best" and self._opened().best == done.round:
            self._commit("best")
        elif keep != "none" and is_over:
            self._commit("last")
        elif is_due:
            self._commit(None)

    def _keep_best_so_far(self, earlier: Run) -> None:
        """Keep the models of the best round so far if `keep.models=best` was not set before.

        Raises:
            UserError: if these models were not kept.
        """
        best, keep = earlier.best, self.experiment.keep.models or self._usual
        before = earlier.info.config["keep"]["models"] or self._usual
        if keep != "best" or before == "best" or best is None:
            return
        if best.round != earlier.done:
            raise UserError(
                f"keep.models was {before} when round {best.round}, the best so far, was run; "
                f"resume with keep.models={before}"
            )
        self._commit("best")

    def _commit(self, which: Which | None) -> None:
        """Start a checkpoint, and pin its models."""
        writer, pin = self._opened(), None if which is None else self._pin(which)
        # rounds may be ahead of states, never behind
        facts = {"rounds": writer.mark}
        self._states.commit(self._federation.snapshot, facts, pin, before=writer.flush)

    def _costs_after(self, done: Round) -> Costs:
        """Return the run's costs after a round."""
        before, now = self._costs, time.time()
        device = max(self._executor.device_bytes, peak_device_memory(self._device))
        self._costs = Costs(
            wall_seconds=now - self._started,
            startup_seconds=before.startup_seconds if done.round else now - self._began,
            peak_rss_bytes=max(before.peak_rss_bytes, peak_rss()),
            peak_device_bytes=max(before.peak_device_bytes, device),
        )
        return self._costs

    def _end(self) -> None:
        """Write that the run has ended, unless an earlier process has written it."""
        self._states.wait()
        if self._earlier is None or not self._folder.is_finished:
            self._opened().end()

    def _close_files(self) -> None:
        """Wait until the last checkpoint is complete, and close the files."""
        try:
            self._states.wait()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _pin(self, which: Which) -> Pin:
        """Return a pin of the models; downloads that clients share are stored once."""
        federation = self._federation
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
            "round": federation.snapshot.round,
            "is_global": has_global_model(federation.algorithm, federation.snapshot.server),
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


REMEDY = "lower workers, choose a smaller text.encoder or model, or set server_gpus=0"


@contextmanager
def keep_tracebacks(folder: RunFolder, device: torch.device) -> Iterator[None]:
    """Write the traceback of an error that stops a run to its folder; the error names the file.

    Raises:
        UserError: if the memory of the server's device has run out.
        RunFailed: if the disk is full.
        CodeError: for errors that neither the user nor the machine caused.
    """
    try:
        with explain_disk_full(folder.path):
            yield
    except (UserError, RunFailed):
        raise
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit()
        if is_out_of_memory(error):
            free_memory(device)
            step = f", round {error.round}" if isinstance(error, ServerError) else ""
            raise out_of_memory(device, f"the server{step}", REMEDY) from error
        if isinstance(error, ClientError | ServerError):
            text = f"{error}\n\n{error.failure.traceback or Failure.of(error).traceback}"
            raise error.kept(folder.keep_error(text)) from error
        failure = Failure.of(error)
        raise CodeError(failure, folder.keep_error(failure.traceback)) from error
