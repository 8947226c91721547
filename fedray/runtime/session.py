"""One run in one folder: assemble, go on where it stopped, write what happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, dump_yaml, load_experiment, read_mapping
from fedray.core import Algorithm
from fedray.data import FederatedData
from fedray.data.plot import plot_partition
from fedray.errors import (
    ClientError,
    CodeError,
    Failure,
    RunFailed,
    ServerError,
    UserError,
    nearest,
)
from fedray.evaluation.metrics import declared_metrics
from fedray.evaluation.protocols import analysis_metrics
from fedray.federation import Executor, Federation, Plan, Snapshot
from fedray.files import full_disk_said, replace_whole, write_atomic
from fedray.plugins import use
from fedray.records import (
    HEADLINE,
    MADE_BY,
    Costs,
    FolderClaim,
    Metric,
    Release,
    Round,
    Run,
    RunFolder,
    RunInfo,
    RunWriter,
    Stopping,
    rounds_checksum,
    versions,
)
from fedray.runtime.assembly import Assembly
from fedray.runtime.cache import shared
from fedray.runtime.devices import pick_device, servers_memory
from fedray.runtime.memory import peak_rss
from fedray.runtime.outside import changed_files, said
from fedray.runtime.privacy import accountant_of, statement
from fedray.saved_models import ModelSaver

log = logging.getLogger(__name__)


class Session:
    """One federated run and its folder.

    The folder is claimed, and proved writable, before anything is computed.

    Args:
        experiment: what to run.
        out: the run's folder; a run of the same experiment in it goes on after its checkpoint.
        make_executor: makes the executor from the assembled parts.
        began: when start-up began, in seconds since the epoch; for the start-up time.
        keeps: which models are kept where `keep.models` is not set.

    Raises:
        UserError: when the folder cannot be written, holds another experiment or is damaged, or
            when something is missing.
        CodeError: when anything else is raised; it names the file with the traceback.
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
        self._unwritten: list[Release] = []
        self._stop: EarlyStop | None = None
        self._began = time.time() if began is None else began
        self._device = pick_device(experiment.server_gpus)
        self._claim = FolderClaim(self._folder)
        self._claim.acquire()
        try:
            with tracebacks_kept(self._folder), servers_memory(experiment, self._device):
                self._assemble(make_executor)
        except BaseException:
            self._claim.release()
            raise

    def _assemble(self, make_executor: Callable[[Assembly], Executor]) -> None:
        experiment, out = self.experiment, self._folder.path
        check_folder(out, experiment)
        torch.set_num_threads(experiment.threads)
        self._assembly = Assembly(experiment)
        check_data(self._folder, self._assembly)
        check_files(self._folder, self._assembly)
        check_result(self._folder, self._assembly)
        server = self._assembly.server(self._device)
        self._executor = make_executor(self._assembly)
        self._federation = Federation(
            self._assembly.algorithm,
            self._executor,
            self._assembly.gate,
            self._assembly.plan,
            server,
            self._assembly.streams,
            accountant_of(experiment, self._folder, self._note),
        )
        self._store = CheckpointStore(out, self._assembly.identity)
        self._models = ModelSaver(
            self._federation,
            experiment,
            self._assembly.data,
            self._assembly.identity,
            self._folder,
            self._keeps,
        )

    def rounds(self) -> Generator[Round, None, None]:
        """Yield each round; after a resume, only the new ones.

        Nothing is written before the first round has shown that the experiment works. A round's
        checkpoint is written beside the next round, and whole before that one is yielded, or when
        the iterator is closed. What stops the run leaves its traceback in the folder.

        Raises:
            UserError: when what an earlier process left in the folder is damaged.
            RunFailed: when the disk is full.
            CodeError: when code that the run calls raised an error; it names the file with the
                traceback. A client's is a `ClientError`.
        """
        try:
            with tracebacks_kept(self._folder), servers_memory(self.experiment, self._device):
                yield from _with_plugins(self.experiment, self._run(*self._resumed()))
                self._executor.close()
                self._store.tidy()
        finally:
            self._executor.close()
            self._claim.release()

    def settle(self) -> None:
        """Wait until the last checkpoint that was due is whole.

        Raises:
            OSError: when it could not be written.
        """
        self._store.wait()

    def _resumed(self) -> tuple[Snapshot | None, Run | None]:
        """Where an interrupted run stood, and what it had written until then.

        Raises:
            UserError: when checkpoint and rounds do not belong to each other, or one is missing.
        """
        found = self._store.load()
        self._executor.states = self._store.states
        if found is None:
            check_nothing_lost(self._folder)
            self._store.tidy()
            return None, None
        earlier = self._folder.read()
        rounds = [r for r in earlier.rounds if r.round <= found.snapshot.round]
        if rounds_checksum(rounds, self._assembly.identity) != found.rounds_checksum:
            raise UserError(
                f"the rounds in {self._folder.path} are not those of its checkpoint of round "
                f"{found.snapshot.round}; restore {self._folder.result.name} and "
                f"{self._folder.rounds_file.name} from a copy, or start anew with another --out"
            )
        self._folder.first_analyses(found.snapshot.round)  # is refused before anything is changed
        self._store.tidy()
        self._folder.write_partition(self._assembly.data.manifest())
        return found.snapshot, replace(earlier, rounds=rounds)

    def _run(self, snapshot: Snapshot | None, earlier: Run | None) -> Generator[Round, None, None]:
        costs = earlier.costs if earlier is not None else Costs()
        spent, started = costs.wall_seconds, time.time()
        writer: RunWriter | None = None
        info = run_info(self._assembly)
        self._stop = EarlyStop(info.stopping, earlier.rounds if earlier else ())
        try:
            for done in self._stop.until_due(self._federation.rounds(snapshot)):
                writer = writer or self._open(info, earlier)
                if done.round == 0:
                    costs = replace(costs, startup_seconds=time.time() - self._began)
                costs = replace(
                    costs,
                    wall_seconds=spent + time.time() - started,
                    peak_rss_bytes=max(costs.peak_rss_bytes, peak_rss()),
                )
                writer.append(done, costs)
                self._keep(done, writer)
                yield done
            self._store.wait()
            if writer is None and earlier is not None:
                self._folder.put_together()  # killed between its last checkpoint and its end
        except (ClientError, ServerError):
            if writer is not None:
                self._keep_round_before(writer)
            raise
        finally:
            self._keep_tracebacks()
            if writer is not None:
                self._end(writer)

    def _open(self, info: RunInfo, earlier: Run | None) -> RunWriter:
        """Write what does not change from round to round, and open the file of rounds."""
        data, folder = self._assembly.data, self._folder
        write_atomic(folder.config, dump_yaml(self.experiment.tree()))
        folder.write_partition(data.manifest())
        folder.write_plugins(self.experiment.plugins)
        if earlier is None:
            folder.error.unlink(missing_ok=True)
        else:
            info = gone_on(info, earlier, folder)
        for release in self._unwritten:
            folder.releases.append(release)
        self._unwritten.clear()
        return RunWriter(folder, info, earlier)

    def _keep(self, done: Round, writer: RunWriter) -> None:
        """Write models and a checkpoint where they are due, and tracebacks of survived failures.

        Models come first: what a checkpoint goes on after has kept its best ones.
        """
        every, number = self.experiment.checkpoint_every, done.round
        self._keep_tracebacks()
        last = number == self.experiment.rounds or (self._stop is not None and self._stop.is_due)
        self._models.after(done, writer.best, is_last=last)
        if every > 0 and (last or number % every == 0):
            self._save(writer)

    def _save(self, writer: RunWriter) -> None:
        """Begin to write a checkpoint of the last whole round; the one before is whole then."""
        self._store.begin(self._federation.snapshot, writer.rounds_checksum, writer.descriptor)

    def _end(self, writer: RunWriter) -> None:
        """Finish the last checkpoint, close the file of rounds, and draw the partition.

        The plot takes a second or two, so it comes last: no round waits for it.
        """
        try:
            self._store.wait()
        finally:
            writer.close(stopped_early=self._stop is not None and self._stop.is_due)
            plot = self._folder.partition_plot
            if not plot.exists():
                plot_phases(self._assembly.data, self._assembly.plan, plot)

    def _keep_round_before(self, writer: RunWriter) -> None:
        """Write the checkpoint of the last whole round, where none was due."""
        every = self.experiment.checkpoint_every
        if every > 1 and self._federation.snapshot.round % every:
            self._executor.states.revert()
            self._save(writer)

    def _note(self, release: Release) -> None:
        """Write down what clients are about to release; before the first round is there, later."""
        if self._folder.has_result:
            self._folder.releases.append(release)
        else:
            self._unwritten.append(release)

    def _keep_tracebacks(self) -> None:
        """Write down the failures that the run has survived since this was called last."""
        for traceback in self._federation.tracebacks:
            self._folder.append_error(traceback)
        self._federation.tracebacks.clear()


def _with_plugins(experiment: Experiment, rounds: Generator[Round, None, None]) -> Iterator[Round]:
    """Each round, made while the run's plug-ins are in use: another run here may have others."""
    with closing(rounds):
        while True:
            use(experiment.plugins)
            done = next(rounds, None)
            if done is None:
                return
            yield done


class EarlyStop:
    """Ends the rounds of a run as `early_stopping` says; what it knows stands in the rounds.

    Args:
        stopping: when they end; None: never.
        before: the rounds that are done.
    """

    def __init__(self, stopping: Stopping | None, before: Sequence[Round]) -> None:
        self._stopping = stopping
        self._values: list[float] = []
        for done in before:
            self._look_at(done)

    @property
    def is_due(self) -> bool:
        """Whether the run has ended."""
        return self._stopping is not None and self._stopping.is_due(self._values)

    def until_due(self, rounds: Iterator[Round]) -> Iterator[Round]:
        """The rounds up to the last one.

        Raises:
            UserError: when an evaluated round lacks what has to improve.
        """
        while not self.is_due and (done := next(rounds, None)) is not None:
            self._look_at(done)
            yield done

    def _look_at(self, done: Round) -> None:
        stopping = self._stopping
        if stopping is None or done.round == 0:
            return
        if stopping.metric in done.metrics:
            self._values.append(done.metrics[stopping.metric])
        elif HEADLINE in done.metrics:
            raise UserError(
                f"early_stopping.metric: round {done.round} was evaluated and has no "
                f"'{stopping.metric}'.{nearest(stopping.metric, done.metrics)}"
            )


def run_info(assembly: Assembly, retested: Mapping[str, Any] | None = None) -> RunInfo:
    """What determines the numbers of a run.

    Args:
        assembly: its parts.
        retested: see `RunInfo`.
    """
    experiment, data = assembly.experiment, assembly.data
    return RunInfo(
        name=experiment.name,
        scale=experiment.scale,
        algorithm=experiment.algorithm.name,
        config=experiment.record(),
        seed=experiment.seed,
        identity=assembly.identity,
        versions=versions(),
        partition_sha256=data.sha256,
        data_sha256=data.images.sha256,
        architectures=list(assembly.models.architectures),
        metrics=metrics_of(assembly.algorithm),
        privacy=statement(experiment),
        retested=retested,
        files_sha256=assembly.files or None,
    )


def gone_on(info: RunInfo, earlier: Run, folder: RunFolder) -> RunInfo:
    """What determines the numbers of a run that goes on: where versions changed, which was when.

    Args:
        info: as it is now.
        earlier: what the run has written, cut to the rounds that still count.
        folder: the run's, to be named where versions have changed.
    """
    before = list(earlier.info.earlier_versions)
    last: Mapping[str, Any] = {"until_round": earlier.done, "versions": dict(earlier.info.versions)}
    if before and before[-1]["until_round"] >= earlier.done:  # of what came after, nothing counts
        last = before.pop()
    then, now = last["versions"], info.versions
    changes = [
        f"{name} {then.get(name, 'unknown')}, now {now.get(name, 'unknown')}"
        for name in MADE_BY
        if then.get(name) != now.get(name)
    ]
    if changes:
        log.warning(
            "%s goes on after round %d with other versions than before (%s); %s names both",
            folder.path,
            earlier.done,
            "; ".join(changes),
            folder.result.name,
        )
        before.append(last)
    return replace(info, earlier_versions=before)


def plot_phases(data: FederatedData, plan: Plan, path: Path) -> None:
    """Plot who holds what, phase by phase, and say who joins when; the same plot is drawn once."""
    starts = [first for first, _ in data.phases]
    titles = [
        f"rounds {max(first, 1)} to {end - 1}: " if data.later else ""
        for first, end in zip(starts, [*starts[1:], plan.rounds + 1], strict=True)
    ]
    if plan.join.clients:
        come = f"{plan.newcomers[0]} to {plan.newcomers[-1]}"
        titles[0] = f"clients {come} join in round {plan.join.round}\n{titles[0]}"

    def draw() -> bytes:
        counts = [then.histogram() for _, then in data.phases]
        later = list(zip(titles, counts, strict=True))[1:]
        image = BytesIO()
        plot_partition(counts[0], data.class_names, image, later, titles[0])
        return image.getvalue()

    key = ("partition plot", data.sha256, data.class_names, *titles)
    image = shared.get(key, draw)
    replace_whole(path, lambda temporary: temporary.write_bytes(image))


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
    except (ClientError, ServerError) as error:
        text = f"{error}\n\n{error.failure.traceback or Failure.of(error).traceback}"
        raise error.kept(folder.keep_error(text)) from error
    except (UserError, RunFailed):
        raise
    except (Exception, SystemExit) as error:  # somebody's code may end in sys.exit()
        failure = Failure.of(error)
        raise CodeError(failure, folder.keep_error(failure.traceback)) from error


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
        f"{out} holds another experiment ({differing}); give --resume {out} alone to go "
        "on with what it holds, or name another folder with --out"
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


def check_files(folder: RunFolder, assembly: Assembly) -> None:
    """Refuse to go on with texts or weights that are not those of the earlier rounds.

    Raises:
        UserError: naming the key, with both hashes.
    """
    before = folder.read().info.files_sha256 if folder.has_result else None
    if not before:  # written before this was: nothing to compare with, nothing to look for
        return
    for key in changed_files(before, assembly.files):
        raise UserError(
            f"the {said(key, assembly.experiment)} are not those that {folder.path} began with "
            f"(content hash {before[key][:12]}, now {assembly.files[key][:12]}); restore what "
            "they were, or start anew with another --out"
        )


def check_result(folder: RunFolder, assembly: Assembly) -> None:
    """Refuse to go on where result.json is of another experiment, or of other clients.

    Raises:
        UserError: with both hashes of the partition, where it is that.
    """
    if not folder.has_result:
        return
    before, now = folder.read().info, assembly.data.sha256
    if before.partition_sha256 not in (None, now):
        raise UserError(
            f"the clients' images are not those that {folder.path} began with (hash of the "
            f"partition {before.partition_sha256[:12]}, now {now[:12]}); go on with the versions "
            f"of packages that {folder.result} names, or start anew with another --out"
        )
    if before.identity != assembly.identity:
        raise UserError(
            f"{folder.result} is of another experiment than {folder.config} and the given keys; "
            "restore both from a copy, or start anew with another --out"
        )


def check_nothing_lost(folder: RunFolder) -> None:
    """Refuse to begin again at round 0 where rounds were done and their checkpoint is gone.

    A run with checkpoint_every=0 keeps none on purpose, so it begins again. So does one that was
    killed before its first checkpoint, in round 0.

    Raises:
        UserError: with the ways to go on.
    """
    if not (folder.has_result or folder.has_rounds):
        return
    earlier = folder.read()
    if earlier.done < 1 or earlier.info.config.get("checkpoint_every") == 0:
        return
    raise UserError(
        f"{folder.path} has the rounds up to {earlier.done} and no checkpoint of them; restore "
        f"{folder.path / 'checkpoints'} from a copy, or, to begin again at round 0, remove "
        f"{folder.result.name} and {folder.rounds_file.name} there"
    )


def _first_difference(before: Any, now: Any, place: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=lambda key: (key != "name", key)):
            if before.get(key) != now.get(key):
                inner = f"{place}.{key}" if place else str(key)
                return _first_difference(before.get(key), now.get(key), inner)
    return f"{place} was {before!r}, now {now!r}"
