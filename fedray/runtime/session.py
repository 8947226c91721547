"""One run in one folder: assemble its parts, resume, and record every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Literal

import torch

from fedray.config import Experiment
from fedray.errors import ClientError, CodeError, Failure, RunFailed, ServerError, UserError
from fedray.federation import Executor, Federation
from fedray.plugins import use
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    device_of_this_process,
    free_memory,
    is_out_of_memory,
    out_of_memory,
)
from fedray.runtime.isolation import OwnFlags
from fedray.runtime.memory import peak_device_memory
from fedray.runtime.privacy import accountant_of
from fedray.runtime.records import Records
from fedray.runtime.resume import check_same, load_checkpoint
from fedray.storage.claim import claimed
from fedray.storage.files import explain_disk_full
from fedray.storage.run import Round, Run
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore
from fedray.trees import Snapshot


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
        self._keeps = keeps
        self._folder = RunFolder(out)
        self._began = time.time() if began is None else began
        self._flags = OwnFlags()
        self._device = device_of_this_process(experiment.server_gpus, "the server", "server_gpus")
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
                yield from self._run(*load_checkpoint(*of_run))
                self._executor.close()
                self._states.tidy()
        finally:
            self._executor.close()
            self._claim.close()
            self._flags.leave()

    def _run(self, snapshot: Snapshot | None, earlier: Run | None) -> Generator[Round, None, None]:
        experiment, assembly = self.experiment, self._assembly
        self._executor.states = self._states
        self._federation = federation = Federation(
            assembly.algorithm,
            self._executor,
            assembly.gate,
            assembly.plan,
            assembly.server(self._device),
            accountant_of(experiment, assembly.plan, earlier.rounds if earlier is not None else ()),
        )
        of_run = self._folder, assembly, self._states, earlier, self._began, self._keeps
        with closing(Records(*of_run)) as records:
            rounds = federation.rounds(snapshot)
            if snapshot is not None and earlier is not None and not earlier.is_finished:
                federation.snapshot = snapshot
                records.resume(federation)
            while True:
                use(experiment.plugins)  # another run of this process may have used others
                if (done := next(rounds, None)) is None:
                    break
                used = max(self._executor.device_bytes, peak_device_memory(self._device))
                records.opened().append(done, records.costs(done, used))
                records.save(done, federation)
                self._flags.leave()
                yield done
                self._flags.enter()
            records.end()


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
