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
from fedray.base.trees import StateTree
from fedray.config import Experiment
from fedray.config.plugins import use, write_copies
from fedray.core.payload import split_payload
from fedray.evaluation.protocols import has_global_model
from fedray.federation import Executor, Federation
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    device_of_this_process,
    out_of_memory,
    peak_device_memory,
    peak_rss,
)
from fedray.runtime.isolation import OwnFlags
from fedray.runtime.privacy import accountant_of
from fedray.runtime.resume import check_same, load_checkpoint, run_info
from fedray.storage.files import claimed, explain_disk_full
from fedray.storage.run import Costs, Round, Run
from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.storage.states import FIRST_DOWNLOAD, Pin, StateStore, Which, Written


class Session:
    """One federated run and its folder.

    The session claims the folder, and checks that it is writable, before any computation.

    Args:
        experiment: the experiment to run.
        out: the run's folder; a run of the same experiment in the folder resumes from its
            checkpoint.
        make_executor: returns the executor for the assembled parts.
        began: when start-up began, in seconds since the epoch; for the start-up time.
        keeps: which models are saved if `keep.models` is not set. A run of a study, "none", also
            needs no checkpoint after its last round.

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
        self._keep, self._keeps_last = experiment.keep.models or keeps, keeps != "none"
        self._folder, self._states = RunFolder(out), StateStore(RunFolder(out).states)
        self._began = time.time() if began is None else began
        self._flags, gpus = OwnFlags(), experiment.server_gpus
        with self._flags.set(), ExitStack() as claim:
            self._device = device_of_this_process(gpus, "server_gpus")
            claim.enter_context(claimed(out))
            with keep_tracebacks(self._folder, self._device):
                torch.set_num_threads(experiment.threads)
                self._assembly = Assembly(experiment)
                if self._folder.has_run:
                    check_same(self._folder, experiment, self._assembly)
                self._executor = make_executor(self._assembly)
            self._claim = claim.pop_all()

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
        rounds = self._run()
        try:
            while True:
                with self._flags.set():
                    done = next(rounds, None)
                if done is None:
                    return
                yield done
        finally:
            rounds.close()
            self._executor.close()
            self._claim.close()

    def _run(self) -> Generator[Round, None, None]:
        """Run each round and write what it leaves: its line, and then the states."""
        a, folder, states, writer = self._assembly, self._folder, self._states, None
        with keep_tracebacks(folder, self._device), ExitStack() as files:
            snapshot, earlier = load_checkpoint(folder, states, a)
            self._executor.states, self._costs = states, earlier.costs if earlier else Costs()
            self._started = time.time() - self._costs.wall_seconds
            accountant = accountant_of(self.experiment, a.plan, earlier.rounds if earlier else ())
            parts = a.algorithm, self._executor, a.gate, a.plan, a.server(self._device), accountant
            self._federation = Federation(*parts)
            rounds = self._federation.rounds(snapshot)
            while True:
                use(self.experiment.plugins)  # another run of this process may have used others
                if (done := next(rounds, None)) is None:
                    break
                writer = writer or self._open(earlier, files)
                writer.append(done, self._costs_after(done))
                self._save(done, writer)
                yield done
            states.wait()
            if not folder.is_finished:  # an earlier process may have written the end
                (writer or self._open(earlier, files)).end()
        self._executor.close()
        states.tidy()

    def _open(self, earlier: Run | None, files: ExitStack) -> RunWriter:
        """Write the files that do not change between rounds; return the writer of the others."""
        assembly, folder = self._assembly, self._folder
        write_copies(folder.path, self.experiment.plugins)
        if earlier is None:
            folder.error.unlink(missing_ok=True)
        info = replace(run_info(assembly), started=datetime.fromtimestamp(self._began, UTC))
        writer = RunWriter(folder, info, assembly.data.manifest(), earlier)
        files.callback(writer.close)
        files.callback(self._states.wait)  # first: a commit flushes the rounds
        return writer

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

    def _save(self, done: Round, writer: RunWriter) -> None:
        """Start a checkpoint if one is due after a round, or its models are kept."""
        every, is_last = self.experiment.checkpoint_every, done.round == self.experiment.rounds
        is_due = every > 0 and (self._keeps_last if is_last else done.round % every == 0)
        pin, best = None, writer.best
        if self._keep == "best" and best is not None and best.round == done.round:
            pin = self._pin("best")
        elif self._keep != "none" and is_last:
            pin = self._pin("last")
        if is_due or pin is not None:
            # rounds may be ahead of states, never behind
            facts = {"rounds": writer.mark}
            self._states.commit(self._federation.snapshot, facts, pin, before=writer.flush)

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
        step = f", round {error.round}" if isinstance(error, ServerError) else ""
        if memory := out_of_memory(error, device, f"the server{step}"):
            raise memory from error
        if isinstance(error, ClientError | ServerError):
            text = f"{error}\n\n{error.failure.traceback or Failure.of(error).traceback}"
            raise error.kept(folder.keep_error(text)) from error
        failure = Failure.of(error)
        raise CodeError(failure, folder.keep_error(failure.traceback)) from error
