"""MlflowTracker: a queue and one writing thread, so that no run waits for a slow or dead server."""

from __future__ import annotations

import queue
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedray.config import Experiment
from fedray.files import results_home
from fedray.masking import mask
from fedray.records import RESULT, Round, RunFolder, RunInfo, Status
from fedray.tracking.describe import (
    IDENTITY_TAG,
    DataInput,
    Point,
    Totals,
    as_param,
    data_of,
    experiment_name,
    per_client_json,
    valid_name,
)
from fedray.tracking.models import add_models
from fedray.tracking.protocol import Tracker
from fedray.tracking.store import (
    DEFERRED,
    OpenRun,
    RunSpec,
    Store,
    page_hint,
    reason,
    refused,
    resolve_uri,
)

CLOSE_SECONDS = 30.0
"""How long `close` waits for what MLflow is still taking in."""
CLOSE_SECONDS_DOWN = 5.0
"""How long it waits for a server that has failed before."""
CLOSE_TRIES = 3
"""How often it is tried, a second apart, to write what is left."""


@dataclass(frozen=True)
class _End:
    """How a run ended, and what is kept with it."""

    status: Status
    artifacts: Sequence[Path]
    metrics: Mapping[str, float]
    per_client: str
    ended_ms: int
    note: str


@dataclass
class _Pending:
    """What MLflow does not have yet of one run; only the writing thread touches it."""

    spec: RunSpec
    orphans: bool
    points: list[tuple[int, Point]] = field(default_factory=list)
    end: _End | None = None
    opened: OpenRun | None = None
    base: Mapping[str, float] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether MLflow is missing something."""
        return self.opened is None or bool(self.points) or self.end is not None


_Command = tuple[str, str, Any]


class MlflowTracker:
    """Logs runs to MLflow from a thread of its own.

    A server that fails is tried again now and then. The first failure is said on stderr, and at the
    end what is missing; both with the command that uploads it.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        experiment: MLflow experiment.
        parent: what `start_parent` returned, for runs that belong to a sweep.
        folder: the run's or the sweep's folder, for the message.
        question: see `Store`.
        live: whether the runs are running; False when they are only copied from their files.
        retry_seconds: how long a failed server is left alone; doubles up to ten minutes.

    Attributes:
        failure: why MLflow failed first; None as long as it has not.
        rounds_logged: how many rounds were missing there and are now there.

    Raises:
        UserError: when MLflow is not installed.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        *,
        parent: str | None = None,
        folder: Path | None = None,
        question: str = "",
        live: bool = True,
        retry_seconds: float = 30.0,
    ) -> None:
        self.uri = uri
        self.experiment = experiment
        self.folder = folder
        self._parent = parent
        self._live = live
        self._store = Store(uri, experiment, question)
        self._totals: dict[str, Totals] = {}
        self._ids: dict[str, str] = {}
        self._parent_key: str | None = None
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._runs: dict[str, _Pending] = {}
        self.failure: str | None = None
        self._cause = ""
        self.rounds_logged = 0
        self._passed = self._settled = 0
        self._open_keys: set[str] = set()
        self._down = False
        self._first_retry = self._retry = retry_seconds
        self._next_try = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- what runs call ---------------------------------------------------------------------------

    def start(
        self,
        key: str,
        name: str,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: Sequence[DataInput] = (),
        parent: str | None = None,
    ) -> str | None:
        """Open the run of this key; its id, if it is known already.

        Args:
            key: see `Tracker`.
            name: see `Tracker`.
            params: see `Tracker`.
            tags: see `Tracker`.
            data: see `Tracker`.
            parent: the key of another run that this one is a child of; None: the tracker's parent,
                if it has one.
        """
        above = self._parent if parent is None else f"{DEFERRED}{parent}"
        self._open(key, name, params, tags, above, data, orphans=False)
        return self._ids.get(key)

    def round(self, key: str, done: Round) -> None:
        """Log one round; one that was passed before, or that MLflow has, is skipped."""
        totals = self._totals[key]
        point = totals.point(done)
        if point is not None:
            self._passed += 1
            self._send("point", key, (totals.first, point))

    def finish(
        self,
        key: str,
        status: Status,
        artifacts: Sequence[Path] = (),
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        """Close the run; a result.json among the artifacts is read for what was not passed."""
        per_client = per_client_json(self._totals.pop(key).per_client)
        clean = {valid_name(name): float(value) for name, value in metrics.items()}
        end = _End(status, tuple(artifacts), clean, per_client, _now_ms(), note)
        self._send("end", key, end)

    def close(self, wait_seconds: float | None = None) -> None:
        """Write what is left.

        Args:
            wait_seconds: how long to wait at most; None: half a minute, or some seconds if MLflow
                had failed before.
        """
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            return
        self._commands.put(("close", "", None))
        if wait_seconds is None:
            wait_seconds = CLOSE_SECONDS_DOWN if self._down else CLOSE_SECONDS
        self._thread.join(wait_seconds)
        late = self._thread.is_alive() or any(run.is_behind for run in self._runs.values())
        if late and self.failure is None:
            self.failure = self._cause = f"not ready after {wait_seconds:g} s"
        if self._live and self.failure is not None:
            self._say(self._missing() if late else "MLflow has taken everything after all")

    # --- what sweeps call -------------------------------------------------------------------------

    def start_parent(
        self,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        *,
        key: str | None = None,
        wait_seconds: float = 60.0,
    ) -> str:
        """Open the run that a sweep's trials are children of; this one call waits for MLflow.

        Runs that this tracker starts from now on are its children.

        Children of an earlier process that never ended are set to KILLED: call it before the trials
        start.

        Args:
            name: what people call it.
            params: the sweep's configuration, flat.
            tags: what it is found by.
            key: finds the parent of an interrupted sweep again; None: `name`.
            wait_seconds: how long to wait for its id.

        Returns:
            What the children's trackers take as `parent`: its run id; if MLflow does not answer,
            its key, with which they find it later.
        """
        key = self._parent_key = key or name
        self._open(key, name, params, tags, None, (), orphans=True)
        deadline = time.monotonic() + wait_seconds
        while key not in self._ids and not self._down and time.monotonic() < deadline:
            time.sleep(0.02)
        self._parent = self._ids.get(key, f"{DEFERRED}{key}")
        return self._parent

    def finish_parent(
        self,
        status: Status,
        artifacts: Sequence[Path] = (),
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        """Close the run that `start_parent` opened."""
        assert self._parent_key is not None, "start_parent was not called"
        self.finish(self._parent_key, status, artifacts, metrics, note)

    def run_id(self, key: str) -> str | None:
        """MLflow's id of a run, once it is known."""
        return self._ids.get(key)

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment; "" while MLflow has not answered."""
        return self._store.experiment_id

    # --- from the caller to the thread ------------------------------------------------------------

    def _open(
        self,
        key: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        parent: str | None,
        data: Sequence[DataInput],
        orphans: bool,
    ) -> None:
        texts = {valid_name(name): as_param(value) for name, value in params.items()}
        labels = {valid_name(k): str(v) for k, v in tags.items()}
        self._totals[key] = Totals()
        self._open_keys.add(key)
        spec = RunSpec(key, name, texts, labels, parent, _now_ms(), tuple(data))
        self._send("open", key, _Pending(spec, orphans))

    def _send(self, what: str, key: str, value: Any) -> None:
        if self._closed:
            raise RuntimeError("the tracker is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="tracking", daemon=True)
            self._thread.start()
        self._commands.put((what, key, value))

    def _fail(self, why: str) -> None:
        """Keep why MLflow failed, and say it the first time."""
        self._cause = why
        if self.failure is not None:
            return
        self.failure = why
        if self._live:
            self._say(
                f"MLflow at {mask(self.uri)} failed ({why}); the run goes on, and result.json has "
                f"everything. To upload it later: {self._upload_command()}"
            )

    def _missing(self) -> str:
        """What MLflow does not have at the end, and how it gets it."""
        rounds, runs = self._passed - self._settled, len(self._open_keys)
        parts = [f"{rounds} round(s)"] if rounds else []
        parts += [f"the end of {runs} run(s)"] if runs else []
        return (
            f"MLflow at {mask(self.uri)} is missing {' and '.join(parts)} ({self._cause}); "
            f"result.json has everything. To upload it: {self._upload_command()}"
        )

    def _upload_command(self) -> str:
        folder = shlex.quote(str(self.folder)) if self.folder else "<the run's folder>"
        return f"python -m fedray.tracking upload {folder}"

    def _say(self, what: str) -> None:
        print(f"tracking: {what}", file=sys.stderr, flush=True)

    # --- the thread -------------------------------------------------------------------------------

    def _write(self) -> None:
        closing = False
        while not closing:
            closing = self._take()
            if not self._down or closing or time.monotonic() >= self._next_try:
                self._flush()
        for _ in range(CLOSE_TRIES - 1):
            if self._down:
                time.sleep(min(self._retry, 1.0))
                self._flush()

    def _take(self) -> bool:
        """Wait for something to do and take all that has come; True when it is time to end."""
        wait = max(0.0, self._next_try - time.monotonic()) if self._down else None
        try:
            command = self._commands.get(timeout=wait)
        except queue.Empty:
            return False
        while True:
            what, key, value = command
            if what == "close":
                return True
            if what == "open":
                before = self._runs.get(key)
                value.points = before.points if before else []
                self._runs[key] = value
            elif what == "point":
                self._runs[key].points.append(value)
            else:
                self._runs[key].end = value
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return False

    def _flush(self) -> None:
        """Bring MLflow up to date with every run, as far as it lets us."""
        failed = False
        for key, run in list(self._runs.items()):
            try:
                self._update(run)
            except Exception as error:
                failed = True
                run.opened = None  # whatever arrived of the last request is asked for anew
                self._fail(reason(error))
                if not refused(error):
                    break
            else:
                if run.end is not None:
                    del self._runs[key]
                    self._open_keys.discard(key)
        if failed:
            self._next_try = time.monotonic() + self._retry
            self._retry = min(2 * self._retry, 600.0)
        else:
            self._retry = self._first_retry
        self._down = failed

    def _update(self, run: _Pending) -> None:
        if run.opened is None:
            run.opened = self._store.open(run.spec, reopen=self._live and run.end is None)
            if run.orphans and self._live:
                self._store.close_orphans(run.opened.run_id)
                run.orphans = False
            self._ids[run.spec.key] = run.opened.run_id
        while run.points:
            first, point = run.points[0]
            if run.base is None:
                run.base = self._store.totals_before(run.opened, first)
            self.rounds_logged += self._store.log(run.opened, point, run.base)
            run.points.pop(0)
            self._settled += 1
        if run.end is not None:
            self._end(run.opened, run.end)
            if self.failure is not None or run.spec.key in self._store.keys_with_twins:
                self._store.delete_twins(run.opened, run.spec.key)

    def _end(self, run: OpenRun, end: _End) -> None:
        """The status first: it needs no store of artifacts, and that one may be down."""
        self._store.close_run(run, end.status, end.metrics, end.ended_ms)
        self._store.describe(run, end.note)
        placed = _folders(end.artifacts)
        for path, folder in placed:
            self._store.add_file(run, path, folder)
        results = []
        for path, folder in placed:  # they know the rounds of earlier processes too
            if path.name != RESULT or not path.is_file():
                continue
            results.append(RunFolder(path.parent).read())
            add_models(self._store, run, path.parent, folder)
            totals = Totals()
            for done in results[-1].rounds:
                totals.point(done)
            self._add_per_client(run, per_client_json(totals.per_client), folder)
        if results:
            infos = [result.info for result in results]
            self._store.add_tags(run, _joined_tags(infos))
            self._store.add_data(run, [each for info in infos if (each := data_of(info))])
        else:
            self._add_per_client(run, end.per_client, None)

    def _add_per_client(self, run: OpenRun, text: str, folder: str | None) -> None:
        if text:
            self._store.add_text(run, text, "per_client.json", folder)


def _joined_tags(infos: Sequence[RunInfo]) -> dict[str, str]:
    """What one run in MLflow says of the seeds that it stands for."""
    return {
        IDENTITY_TAG: ",".join(info.identity for info in infos),
        "partition_sha256": ",".join(str(info.partition_sha256) for info in infos),
    }


def _folders(artifacts: Sequence[Path]) -> list[tuple[Path, str | None]]:
    """Where each file goes among a run's artifacts: into its folder's name if names repeat."""
    names = [path.name for path in artifacts]
    return [(p, p.parent.name if names.count(p.name) > 1 else None) for p in artifacts]


def _now_ms() -> int:
    return int(time.time() * 1000)


def tracker_for(experiment: str, folder: Path | None = None, question: str = "") -> MlflowTracker:
    """The tracker of this installation: $MLFLOW_TRACKING_URI, or a database beside the results.

    Args:
        experiment: MLflow experiment.
        folder: the run's folder, for the message when MLflow fails.
        question: what is asked in the experiment, for its description; "" says nothing.

    Raises:
        UserError: when MLflow is not installed or the URI cannot be written to.
    """
    return MlflowTracker(resolve_uri(results_home()), experiment, folder=folder, question=question)


def run_tracker(experiment: Experiment, folder: Path) -> MlflowTracker:
    """The tracker of a run that belongs to no sweep.

    Args:
        experiment: what is run.
        folder: the run's folder.

    Raises:
        UserError: as `tracker_for`.
    """
    return tracker_for(experiment_name(experiment.name, experiment.tree()), folder)


def ui_hint(tracker: Tracker) -> str | None:
    """How to look at what a tracker logged, and at which page; None when it logs nothing."""
    if not isinstance(tracker, MlflowTracker):
        return None
    return page_hint(tracker.uri, tracker.experiment_id)
