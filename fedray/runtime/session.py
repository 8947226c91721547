"""One run in one folder: assemble, go on where it stopped, write what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, dump_yaml, load_experiment, read_mapping
from fedray.core import Algorithm
from fedray.data.plot import plot_partition
from fedray.errors import ClientError, CodeError, Failure, RunFailed, UserError
from fedray.evaluation.metrics import declared_metrics
from fedray.evaluation.protocols import analysis_metrics
from fedray.federation import Executor, Federation, Snapshot
from fedray.files import full_disk_said, remove_torn, write_atomic
from fedray.records import Costs, Metric, Round, Run, RunFolder, RunInfo, RunWriter, versions
from fedray.runtime.assembly import Assembly, pick_device
from fedray.runtime.memory import peak_rss

LOCK_SECONDS = 20  # a killed run's actors need a few seconds to end


class Session:
    """One federated run and its folder.

    Args:
        experiment: what to run.
        out: the run's folder; a run of the same experiment in it goes on after its checkpoint.
        make_executor: makes the executor from the assembled parts.
        began: when start-up began, in seconds since the epoch; for the start-up time.

    Raises:
        UserError: when the folder holds another experiment, or something is missing.
        CodeError: when anything else is raised; it names the file with the traceback.
    """

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        make_executor: Callable[[Assembly], Executor],
        began: float | None = None,
    ) -> None:
        self.experiment = experiment
        self._folder = RunFolder(out)
        self._began = time.time() if began is None else began
        self._lock = FileLock(self._folder.lock, timeout=LOCK_SECONDS)
        with tracebacks_kept(self._folder):
            self._assemble(make_executor)

    def _assemble(self, make_executor: Callable[[Assembly], Executor]) -> None:
        experiment, out = self.experiment, self._folder.path
        check_folder(out, experiment)
        torch.set_num_threads(experiment.threads)
        self._assembly = Assembly(experiment)
        check_data(self._folder, self._assembly)
        server = self._assembly.server(pick_device(experiment.server_gpus))
        self._executor = make_executor(self._assembly)
        self._federation = Federation(
            self._assembly.algorithm,
            self._executor,
            self._assembly.gate,
            self._assembly.plan,
            server,
            self._assembly.streams,
        )
        self._store = CheckpointStore(out, self._assembly.identity)

    def rounds(self) -> Iterator[Round]:
        """Yield each round; after a resume, only the new ones.

        Nothing is written before the first round has shown that the experiment works. The files
        are up to date whenever a round that is due for a checkpoint has been yielded. What stops
        the run leaves its traceback in the folder.

        Raises:
            UserError: when another process is running in the folder.
            CodeError: when code that the run calls raised an error; it names the file with the
                traceback. A client's is a `ClientError`.
        """
        try:
            with tracebacks_kept(self._folder):
                if self._folder.path.exists():
                    self._claim()
                yield from self._run(*self._resumed())
        finally:
            self._executor.close()
            self._lock.release(force=True)

    def _resumed(self) -> tuple[Snapshot | None, Run | None]:
        """Where an interrupted run stood, and what it had written until then."""
        found = self._store.load()
        if found is None:
            return None, None
        self._store.tidy()
        self._executor.restore(found.clients)
        earlier = self._folder.read()
        rounds = [r for r in earlier.rounds if r.round <= found.snapshot.round]
        return found.snapshot, replace(earlier, rounds=rounds)

    def _run(self, snapshot: Snapshot | None, earlier: Run | None) -> Iterator[Round]:
        costs = earlier.costs if earlier is not None else Costs()
        spent, started = costs.wall_seconds, time.time()
        writer: RunWriter | None = None
        try:
            for done in self._federation.rounds(snapshot):
                writer = writer or self._open(earlier)
                if done.round == 0:
                    costs = replace(costs, startup_seconds=time.time() - self._began)
                costs = replace(
                    costs,
                    wall_seconds=spent + time.time() - started,
                    peak_rss_bytes=max(costs.peak_rss_bytes, peak_rss()),
                )
                writer.append(done, costs)
                self._keep(done.round, writer)
                yield done
        finally:
            self._keep_tracebacks()
            if writer is not None:
                writer.close()
            elif earlier is not None:
                self._folder.put_together()  # killed between its last checkpoint and its end

    def _claim(self) -> None:
        """Keep others out of the folder; a process that was killed has let go of it.

        Raises:
            UserError: when somebody else is running in it, or ran something else in it meanwhile.
        """
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"another process is running in {self._folder.path}; wait for its end, or choose "
                "another folder with --out"
            ) from None
        remove_torn(self._folder.path)
        check_folder(self._folder.path, self.experiment)

    def _open(self, earlier: Run | None) -> RunWriter:
        """Write what does not change from round to round, and open the file of rounds."""
        data, folder = self._assembly.data, self._folder
        folder.path.mkdir(parents=True, exist_ok=True)
        self._claim()
        write_atomic(folder.config, dump_yaml(self.experiment.tree()))
        if not folder.partition.exists():
            plot_partition(data.histogram(), data.class_names, folder.partition_plot)
            folder.write_partition(data.manifest())
        if earlier is None:
            folder.error.unlink(missing_ok=True)
        return RunWriter(folder, self._info(), earlier)

    def _keep(self, round_: int, writer: RunWriter) -> None:
        """Write a checkpoint where one is due, and the tracebacks of survived failures."""
        federation, every = self._federation, self.experiment.checkpoint_every
        self._keep_tracebacks()
        if every > 0 and (round_ == self.experiment.rounds or round_ % every == 0):
            writer.sync()  # the rounds may be ahead of the checkpoint, never behind it
            self._store.save(federation.snapshot, self._executor.export(sorted(federation.stepped)))
            federation.stepped.clear()

    def _keep_tracebacks(self) -> None:
        """Write down the failures that the run has survived since this was called last."""
        for traceback in self._federation.tracebacks:
            self._folder.append_error(traceback)
        self._federation.tracebacks.clear()

    def _info(self) -> RunInfo:
        experiment, data = self.experiment, self._assembly.data
        return RunInfo(
            name=experiment.name,
            scale=experiment.scale,
            algorithm=experiment.algorithm.name,
            config=experiment.tree(),
            seed=experiment.seed,
            identity=self._assembly.identity,
            versions=versions(),
            partition_sha256=data.sha256,
            data_sha256=data.images.sha256,
            architectures=list(self._assembly.models.architectures),
            metrics=metrics_of(self._assembly.algorithm),
        )


@contextmanager
def tracebacks_kept(folder: RunFolder) -> Iterator[None]:
    """Keep the traceback of what stops a run in its folder, and say so in the error.

    Raises:
        RunFailed: when the disk is full.
        CodeError: in place of anything that neither the user nor the machine is to blame for.
    """
    try:
        with full_disk_said(folder.path):
            yield
    except ClientError as error:
        text = f"{error}\n\n{error.failure.traceback or Failure.of(error).traceback}"
        raise error.kept(_kept(folder, text)) from error
    except (UserError, RunFailed):
        raise
    except Exception as error:
        failure = Failure.of(error)
        raise CodeError(failure, _kept(folder, failure.traceback)) from error


def _kept(folder: RunFolder, traceback: str) -> str:
    """The file that a traceback was added to; "" where it cannot be written."""
    try:
        return str(folder.append_error(traceback))
    except OSError:
        return ""


def metrics_of(algorithm: Algorithm) -> tuple[Metric, ...]:
    """What the numbers of a method's rounds mean."""
    return (*declared_metrics(), *analysis_metrics(algorithm))


def check_folder(out: Path, experiment: Experiment) -> None:
    """Refuse a folder in which another experiment was run.

    Raises:
        UserError: naming the first key that differs.
    """
    path = RunFolder(out).config
    if not path.exists():
        return
    before = load_experiment(read_mapping(path))
    if before.identity() == experiment.identity():
        return
    differing = _first_difference(before.reproducibility_key(), experiment.reproducibility_key())
    raise UserError(
        f"{out} holds another experiment ({differing}); pass the same experiment and keys, "
        "or another folder"
    )


def check_data(folder: RunFolder, assembly: Assembly) -> None:
    """Refuse to go on with images or labels that are not those of the earlier rounds.

    Raises:
        UserError: with both hashes.
    """
    now = assembly.data.images.sha256
    before = folder.read().info.data_sha256 if folder.has_result else None
    if before is not None and before != now:
        raise UserError(
            f"the images or labels are not those that {folder.path} began with (content hash "
            f"{before[:12]}, now {now[:12]}); restore data.root={assembly.experiment.data.root}, "
            "or start anew with another --out"
        )


def _first_difference(before: Any, now: Any, place: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=lambda key: (key != "name", key)):
            if before.get(key) != now.get(key):
                inner = f"{place}.{key}" if place else str(key)
                return _first_difference(before.get(key), now.get(key), inner)
    return f"{place} was {before!r}, now {now!r}"
