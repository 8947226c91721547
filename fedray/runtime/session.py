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
from fedray.config import Experiment, dump_yaml, files_of, load_experiment, read_mapping
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
    Costs,
    EarlierEnvironment,
    FolderClaim,
    Metric,
    Release,
    Round,
    Run,
    RunFolder,
    RunInfo,
    RunWriter,
    Stopping,
    environment,
)
from fedray.runtime.assembly import Assembly
from fedray.runtime.cache import shared
from fedray.runtime.devices import pick_device, servers_memory
from fedray.runtime.keeping import ModelKeeper
from fedray.runtime.memory import peak_rss
from fedray.runtime.privacy import accountant_of, statement

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
        self._earlier = self._folder.read() if self._folder.has_result else None
        if self._earlier is not None:
            check_same(self._folder, self._earlier.info, self._assembly)
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
        self._models = ModelKeeper(self._assembly, self._federation, self._folder, self._keeps)

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
            check_nothing_lost(self._folder, self._earlier)
            self._store.tidy()
            return None, None
        before, done = self._earlier or self._folder.read(), found.snapshot.round
        earlier = before.until(done)
        if earlier.done != done or earlier.rounds_checksum != found.rounds_checksum:
            raise UserError(
                f"the rounds in {self._folder.path} are not those of its checkpoint of round "
                f"{done}; restore {self._folder.result.name} and {self._folder.rounds_file.name} "
                "from a copy, or start anew with another --out"
            )
        self._folder.first_analyses(done)  # refuse a damaged file before anything is changed
        self._store.tidy()
        self._folder.write_partition(self._assembly.data.manifest())
        return found.snapshot, earlier

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
            if writer is None and earlier is not None and not self._folder.is_finished:
                writer = RunWriter(self._folder, earlier.info, earlier)  # it was killed at its end
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
            info = resumed_info(info, earlier, folder)
        for release in self._unwritten:
            folder.releases.append(release)
        self._unwritten.clear()
        return RunWriter(folder, info, earlier, self._began)

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
        environment=environment(experiment.threads),
        partition_sha256=data.sha256,
        data_sha256=data.images.sha256,
        architectures=tuple(assembly.models.architectures),
        metrics=metrics_of(assembly.algorithm),
        privacy=statement(experiment),
        retested=retested,
        files_sha256=assembly.files,
    )


def resumed_info(info: RunInfo, earlier: Run, folder: RunFolder) -> RunInfo:
    """Return a resumed run's info, with the earlier environment if it was another one.

    Args:
        info: as it is now.
        earlier: what the run has written, cut to the rounds that still count.
        folder: the run's, for the warning about another environment.
    """
    before = list(earlier.info.earlier_environments)
    last = EarlierEnvironment(earlier.done, earlier.info.environment)
    if before and before[-1].until_round >= earlier.done:  # nothing that came after it counts
        last = before.pop()
    changes = last.environment.changes(info.environment)
    if changes:
        log.warning(
            "%s goes on after round %d in another environment than before (%s); %s names both",
            folder.path,
            earlier.done,
            "; ".join(changes),
            folder.result.name,
        )
        before.append(last)
    return replace(info, earlier_environments=tuple(before))


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


def check_same(folder: RunFolder, before: RunInfo, assembly: Assembly) -> None:
    """Refuse to resume or test a run whose data, files, clients or experiment have changed.

    Args:
        folder: the run's.
        before: what determined the numbers of the earlier rounds.
        assembly: the run's parts as they are now.

    Raises:
        UserError: naming what has changed, with both hashes.
    """
    keys = assembly.experiment.data
    where = f"data.root={keys.root}" if keys.root else f"data.source={keys.source.name}"
    pairs = {f"images or labels of {where}": (before.data_sha256, assembly.data.images.sha256)}
    pairs |= {
        f"contents of {key}={path}": (before.files_sha256.get(key), assembly.files[key])
        for key, path in files_of(assembly.experiment).items()
    }
    for what, (then, now) in pairs.items():
        if then is not None and then != now:
            raise UserError(
                f"the {what} are not what {folder.path} began with (content hash {then[:12]}, now "
                f"{now[:12] or 'missing'}); restore it, or start anew with another --out"
            )
    partition = before.partition_sha256
    if partition not in (None, assembly.data.sha256):
        raise UserError(
            f"the clients' images are not those that {folder.path} began with (hash of the "
            f"partition {partition[:12]}, now {assembly.data.sha256[:12]}); go on with the "
            f"versions of packages that {folder.result} names, or start anew with another --out"
        )
    if before.identity != assembly.identity:
        raise UserError(
            f"{folder.result} is of another experiment than {folder.config} and the given keys; "
            "restore both from a copy, or start anew with another --out"
        )


def check_nothing_lost(folder: RunFolder, earlier: Run | None) -> None:
    """Refuse to begin again at round 0 where rounds were done and their checkpoint is missing.

    A run with checkpoint_every=0 keeps none on purpose, so it begins again. So does one that was
    killed before its first checkpoint, in round 0.

    Args:
        folder: the run's.
        earlier: what it has written; None without a result.

    Raises:
        UserError: with the ways to go on.
    """
    if earlier is None and folder.has_rounds:
        earlier = folder.read()
    if earlier is None or earlier.done < 1 or earlier.info.config.get("checkpoint_every") == 0:
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
