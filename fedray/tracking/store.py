"""The only place that talks to MLflow: each thing is written once, however often it is asked for.

Every call may be repeated after a failure or by another process. What is there is asked for before
it is sent again, and a point's time stamp follows from the run (its start and the seconds of its
rounds), so that a request that MLflow carried out although its answer was lost is, when repeated,
the same point and not a second one. A run that was created twice for that reason becomes one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from fedray.errors import UserError
from fedray.markdown import escape_html
from fedray.masking import mask
from fedray.tracking.describe import (
    MAX_TAG,
    NOTE_TAG,
    SECONDS,
    TOTALS,
    DataInput,
    Point,
    shorten,
)
from fedray.tracking.view import VIEW_TAG, view_path, view_state

T = TypeVar("T")

KEY_TAG = "fedray.key"
PARENT_TAG = "mlflow.parentRunId"
KIND_TAG, MODEL_TRAINING = "mlflow.experimentKind", "custom_model_development"
"""What makes MLflow 3's pages open an experiment as model training, not as work on agents."""
MARKER = SECONDS
"""It is written last, so a round that has it is complete."""
OURS = "<!-- written by fedray; delete this line to keep your own words -->\n"
"""The first line of descriptions that may be written anew."""
ARTIFACT = "artifact:"
"""In a description, before the name of a file that is kept with the run."""
METRICS_PER_BATCH = 1000
ITEMS_PER_BATCH = 100
DEFERRED = "key:"
"""Before a parent's key where its run id is not known, because MLflow did not answer."""

_SQLITE = "sqlite:///"
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # it may name hours; we have our own pauses
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


# --- where ---------------------------------------------------------------------------------------


def resolve_uri(results: Path) -> str:
    """The tracking URI: $MLFLOW_TRACKING_URI, or an sqlite database in `results`; absolute.

    It is resolved once, in the process that the user started: in a trial's working directory a
    relative one would be another database.

    Args:
        results: the folder that holds all results.

    Raises:
        UserError: when $MLFLOW_TRACKING_URI names a folder, which MLflow no longer writes to.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{results.resolve() / 'mlflow.db'}"
    path = sqlite_path(uri)
    if path is not None:
        return f"{_SQLITE}{path}"
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise UserError(
            f"MLFLOW_TRACKING_URI={mask(uri)} is a folder, which MLflow no longer writes to; set "
            f"it to a server (http://host:5000) or a database ({_SQLITE}/absolute/path/mlflow.db)"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """The database's absolute file; None when `uri` is not an sqlite file."""
    return Path(uri.removeprefix(_SQLITE)).resolve() if uri.startswith(_SQLITE) else None


def ui_command(uri: str) -> str:
    """How to look at the runs, without secrets: the command that opens the UI, or the address."""
    shown = mask(uri)
    if uri.startswith(("http://", "https://")):
        return shown
    store = shlex.quote(uri) if shown == uri else '"$MLFLOW_TRACKING_URI"'
    return f"mlflow ui --backend-store-uri {store} --port 5000"


def page_hint(uri: str, experiment_id: str) -> str:
    """How to look at an experiment's runs, accuracy first.

    Args:
        uri: an absolute tracking URI.
        experiment_id: MLflow's; "" where it is not known, and the page is not named.
    """
    command = ui_command(uri)
    if not experiment_id:
        return command
    if command.startswith("http"):
        return command.rstrip("/") + view_path(experiment_id)
    return f"{command}\n  then open http://127.0.0.1:5000{view_path(experiment_id)}"


def check_installed() -> None:
    """Make sure that `import mlflow` is MLflow, without importing it.

    Raises:
        UserError: when it is missing, or a folder of that name stands before it.
    """
    spec = importlib.util.find_spec("mlflow")
    if spec is None:
        raise UserError("mlflow is not installed; pip install 'mlflow>=3.17', or pass --no-track")
    if spec.origin is None:
        places = ", ".join(spec.submodule_search_locations or ())
        raise UserError(
            f"import mlflow finds only the folder {places}, not the package; "
            "pip install 'mlflow>=3.17', or pass --no-track"
        )


# --- what ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSpec:
    """A run as it should be in MLflow.

    Attributes:
        key: what it is found again by, whatever its status.
        name: what it is called.
        params: by name, within MLflow's limits.
        tags: by name.
        parent: the parent's run id, or `key:` and its key; None without one.
        started_ms: when it began, in milliseconds since the epoch.
        data: what it is run on, as far as that is known.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    parent: str | None
    started_ms: int
    data: Sequence[DataInput] = ()


@dataclass
class OpenRun:
    """A run that is in MLflow.

    Attributes:
        run_id: MLflow's id.
        started_ms: its start there; its points' time stamps count from it.
        created: whether this call made it.
        status: RUNNING, FINISHED, FAILED or KILLED.
        logged: rounds that are there.
        tags: as found.
        new_params: how many params this call added.
    """

    run_id: str
    started_ms: int
    created: bool
    status: str
    logged: set[int] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    new_params: int = 0


class Store:
    """An MLflow experiment.

    Args:
        uri: an absolute tracking URI.
        experiment: the experiment's name; made when missing.
        question: what is asked in it, for the experiment's description; "" says nothing.

    Raises:
        UserError: when MLflow cannot be imported.
    """

    def __init__(self, uri: str, experiment: str, question: str = "") -> None:
        check_installed()
        self.uri = uri
        self.experiment = experiment
        self.question = question
        self.keys_with_twins: set[str] = set()
        """Keys of which `find` has seen several runs."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._client: Any = None
        self._experiment_id = ""

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment; "" before it is known."""
        return self._experiment_id

    # Everything below may fail in as many ways as MLflow, its server and its database do.

    def connect(self) -> None:
        """Open the store and the experiment; the first process of all creates the database."""
        if self._client is not None:
            return
        from mlflow import MlflowClient

        path = sqlite_path(self.uri)
        location = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            location = (path.parent / "mlartifacts").as_uri()
        with self._alone():
            if path is not None and not (path.is_file() and path.stat().st_size):
                _make_database(path)
            client = MlflowClient(tracking_uri=self.uri)
            self._experiment_id = self._experiment(client, location)
        self._client = client

    def _alone(self) -> AbstractContextManager[object]:
        """Keeps other processes of this machine from making the same thing in the database."""
        path = sqlite_path(self.uri)
        if path is None:
            return nullcontext()
        return FileLock(path.with_name(f".{path.name}.lock"), timeout=120)

    def _experiment(self, client: Any, location: str | None) -> str:
        tags = {KIND_TAG: MODEL_TRAINING, VIEW_TAG: view_state()}
        if self.question:
            tags[NOTE_TAG] = escape_html(self.question)
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                made = client.create_experiment(
                    self.experiment, artifact_location=location, tags=tags
                )
                return str(made)
            except Exception:
                found = client.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        for name, value in tags.items():
            if name not in found.tags:
                client.set_experiment_tag(found.experiment_id, name, value)
        return str(found.experiment_id)

    def find(self, key: str, *, everywhere: bool = False) -> str | None:
        """Return the id of the run with this key, or None; of several, the one that has most.

        Args:
            key: the run's key.
            everywhere: look in all experiments, not only in this one.
        """
        twins = self._all_with(key, everywhere)
        if len(twins) < 2:
            return twins[0] if twins else None
        self.keys_with_twins.add(key)
        return max(twins, key=self._fullness)

    def delete_twins(self, run: OpenRun, key: str) -> None:
        """Delete other runs of this key, of requests that were carried out after we gave up."""
        for twin in set(self._all_with(key)) - {run.run_id}:
            self._client.delete_run(twin)

    def _all_with(self, key: str, everywhere: bool = False) -> list[str]:
        self.connect()
        places = [self._experiment_id]
        if everywhere:
            places += [e.experiment_id for e in self._client.search_experiments()]
        found = self._client.search_runs(
            sorted(set(places)), filter_string=f"tags.`{KEY_TAG}` = {_quoted(key)}", max_results=100
        )
        return sorted(run.info.run_id for run in found)

    def _fullness(self, run_id: str) -> tuple[int, int]:
        """How much hangs on a run: its rounds and whether it is another's parent."""
        run = self._client.get_run(run_id)
        rounds = MARKER in run.data.metrics and self._client.get_metric_history(run_id, MARKER)
        children = self._client.search_runs(
            [run.info.experiment_id],
            filter_string=f"tags.`{PARENT_TAG}` = '{run_id}'",
            max_results=1,
        )
        return len(rounds or ()), len(children)

    def open(self, spec: RunSpec, *, reopen: bool, everywhere: bool = False) -> OpenRun:
        """Find the run or create it; params and tags that are missing are added.

        Args:
            spec: the run.
            reopen: whether a run that is found is running again.
            everywhere: look for it in all experiments.
        """
        run_id = self.find(spec.key, everywhere=everywhere)
        if run_id is None:
            parent = self._parent_id(spec.parent)
            with self._alone():
                run_id = self.find(spec.key, everywhere=everywhere)
                if run_id is None:
                    return self._create(spec, parent)
        run = self._client.get_run(run_id)
        opened = OpenRun(run_id, run.info.start_time, False, run.info.status)
        opened.tags = dict(run.data.tags)
        if MARKER in run.data.metrics:
            history = self._client.get_metric_history(run_id, MARKER)
            opened.logged = {point.step for point in history}
        opened.new_params = self._add_params(run_id, spec.params, run.data.params)
        self.add_tags(opened, spec.tags)
        self.add_data(opened, spec.data)
        if reopen and opened.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
            opened.status = "RUNNING"
        return opened

    def _create(self, spec: RunSpec, parent: str | None) -> OpenRun:
        tags = {**spec.tags, KEY_TAG: spec.key}
        if parent is not None:
            tags[PARENT_TAG] = parent
        run = self._client.create_run(
            self._experiment_id,
            start_time=spec.started_ms,
            tags={name: shorten(value, MAX_TAG) for name, value in tags.items()},
            run_name=spec.name,
        )
        run_id = str(run.info.run_id)
        if sqlite_path(self.uri) is None:  # requests are repeated, so there may be two
            run_id = self.find(spec.key) or run_id
        made = OpenRun(run_id, spec.started_ms, True, "RUNNING", tags=tags)
        made.new_params = self._add_params(made.run_id, spec.params, {})
        self.add_data(made, spec.data)
        return made

    def _parent_id(self, parent: str | None) -> str | None:
        """A parent's run id; one of which only the key is known is made when it is missing."""
        if parent is None or not parent.startswith(DEFERRED):
            return parent
        key = parent.removeprefix(DEFERRED)
        spec = RunSpec(key, key, {}, {}, None, int(time.time() * 1000))
        return self.open(spec, reopen=False).run_id

    def _add_params(self, run_id: str, wanted: Mapping[str, str], there: Mapping[str, str]) -> int:
        from mlflow.entities import Param

        missing = [Param(name, value) for name, value in wanted.items() if name not in there]
        for chunk in _chunks(missing, ITEMS_PER_BATCH):
            self._client.log_batch(run_id, params=chunk)
        return len(missing)

    def add_tags(self, run: OpenRun, wanted: Mapping[str, str]) -> None:
        """Add the tags that the run does not have yet."""
        from mlflow.entities import RunTag

        missing = {k: shorten(v, MAX_TAG) for k, v in wanted.items() if k not in run.tags}
        for chunk in _chunks([RunTag(*item) for item in missing.items()], ITEMS_PER_BATCH):
            self._client.log_batch(run.run_id, tags=chunk)
        run.tags |= missing

    def add_data(self, run: OpenRun, data: Sequence[DataInput]) -> None:
        """Say what a run was run on; MLflow takes the same data once."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(each.name, each.digest, "fedray", each.source, profile=each.profile),
                [InputTag("mlflow.data.context", "clients")],
            )
            for each in data
        ]
        if inputs:
            self._client.log_inputs(run.run_id, inputs)

    def describe(self, run: OpenRun, note: str) -> None:
        """Write a run's description, unless somebody has written one of their own.

        Args:
            run: the run.
            note: Markdown, whose HTML is shown and not interpreted; `artifact:NAME` becomes the
                address of a file that is kept with it.
        """
        before = run.tags.get(NOTE_TAG, "")
        link = rf"get-artifact?run_uuid={run.run_id}&path=\1"
        text = OURS + re.sub(rf"{ARTIFACT}([\w.-]+)", link, escape_html(note))
        if note and text != before and (not before or before.startswith(OURS.strip())):
            self._client.set_tag(run.run_id, NOTE_TAG, shorten(text, MAX_TAG))
            run.tags[NOTE_TAG] = text

    def log(self, run: OpenRun, point: Point, base: Mapping[str, float]) -> bool:
        """Log one round with its step; one request, unless it has more than 1000 metrics.

        Args:
            run: the run.
            point: the round.
            base: what the totals were before the first round that was passed, by name.

        Returns:
            False when the round was there.
        """
        if point.step in run.logged:
            return False
        from mlflow.entities import Metric

        seconds = point.total_seconds + base.get(TOTALS[-1], 0.0)
        stamp = run.started_ms + round(1000 * seconds)
        values = {name: value + base.get(name, 0.0) for name, value in point.metrics.items()}
        values[MARKER] = values.pop(MARKER)
        metrics = [Metric(name, value, stamp, point.step) for name, value in values.items()]
        for chunk in _chunks(metrics, METRICS_PER_BATCH):
            whole = chunk[-1].key == MARKER
            if run.created or whole or not self._has_point(run, chunk[0].key, point.step):
                self._client.log_batch(run.run_id, metrics=chunk)
        run.logged.add(point.step)
        return True

    def _has_point(self, run: OpenRun, name: str, step: int) -> bool:
        """Whether a metric has a value at a step."""
        history = self._client.get_metric_history(run.run_id, name)
        return any(point.step == step for point in history)

    def totals_before(self, run: OpenRun, first: int) -> dict[str, float]:
        """What the totals were before round `first`, if earlier rounds are there but not here."""
        totals = {}
        if any(step < first for step in run.logged):
            for name in TOTALS:
                history = self._client.get_metric_history(run.run_id, name)
                earlier = [point for point in history if point.step < first]
                totals[name] = max(earlier, key=lambda point: point.step).value
        return totals

    def add_file(self, run: OpenRun, path: Path, folder: str | None = None) -> bool:
        """Keep a file with the run; False when it is missing here, or there with the same size.

        Args:
            run: the run.
            path: the file.
            folder: where to put it among the run's artifacts.
        """
        if not path.is_file() or self._has(run, path.name, folder, path.stat().st_size):
            return False
        self._client.log_artifact(run.run_id, str(path), folder)
        return True

    def add_text(self, run: OpenRun, text: str, name: str, folder: str | None = None) -> bool:
        """Keep a text with the run as a file; False when it is there with the same size."""
        if self._has(run, name, folder, len(text.encode())):
            return False
        self._client.log_text(run.run_id, text, f"{folder}/{name}" if folder else name)
        return True

    def add_folder(self, run: OpenRun, name: str, make: Callable[[], Path]) -> bool:
        """Keep a folder with the run under a name; False when there is something of that name.

        Args:
            run: the run.
            name: of the folder among the run's artifacts.
            make: gives the folder, where it is not there yet.
        """
        if self._client.list_artifacts(run.run_id, name):
            return False
        self._client.log_artifacts(run.run_id, str(make()), name)
        return True

    def _has(self, run: OpenRun, name: str, folder: str | None, size: int) -> bool:
        there = self._client.list_artifacts(run.run_id, folder)
        return (f"{folder}/{name}" if folder else name, size) in {
            (item.path, item.file_size) for item in there
        }

    def close_run(
        self, run: OpenRun, status: str, metrics: Mapping[str, float], ended_ms: int
    ) -> None:
        """Log the final numbers that are not there, and set the status, if it is another.

        Args:
            run: the run.
            status: FINISHED, FAILED or KILLED.
            metrics: final numbers by name; their step is the last round.
            ended_ms: when it ended, in milliseconds since the epoch.
        """
        from mlflow.entities import Metric

        step = max(run.logged, default=0)
        there = self._client.get_run(run.run_id).data.metrics if metrics else {}
        new = [
            Metric(name, value, ended_ms, step)
            for name, value in metrics.items()
            if name not in there or not self._has_point(run, name, step)
        ]
        for chunk in _chunks(new, METRICS_PER_BATCH):
            self._client.log_batch(run.run_id, metrics=chunk)
        if run.status != status:
            self._client.set_terminated(run.run_id, status, end_time=ended_ms)
            run.status = status

    def close_orphans(self, parent_id: str) -> int:
        """Set a parent's children that still run to KILLED; for when no process of theirs lives."""
        children = self._client.search_runs(
            [self._experiment_id],
            filter_string=f"tags.`{PARENT_TAG}` = '{parent_id}' and attributes.status = 'RUNNING'",
            max_results=1000,
        )
        for child in children:
            self._client.set_terminated(child.info.run_id, "KILLED")
        return len(children)


def _make_database(path: Path) -> None:
    """Make an sqlite database with MLflow's tables, in one step.

    A process that dies in the middle would leave one that MLflow can neither use nor repair. So it
    is made beside its place, by a process of its own: this one must hold no connection to it, and
    Ctrl-C must not reach it. That process outlives us when we are killed; it loses its folder then,
    so that it cannot make the file again after the next of us has cleared it away.
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        gone = left.with_name(f".{path.name}.{os.getpid()}.gone")
        left.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    folder.mkdir()
    try:
        _migrate(folder / path.name)
        os.replace(folder / path.name, path)
    except RuntimeError as error:
        raise RuntimeError(f"MLflow could not make {path}: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _migrate(path: Path) -> None:
    """Make MLflow's tables in another process; RuntimeError with the last line of what it says."""
    code = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments()"
    command = [sys.executable, "-c", code, f"{_SQLITE}{path}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, start_new_session=True
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(last)


def _quoted(text: str) -> str:
    """A string in MLflow's search language, which has no way to escape a quote."""
    quote = "'" if '"' in text else '"'
    if quote in text:
        raise ValueError(f"the run's key {text!r} has both kinds of quotes")
    return f"{quote}{text}{quote}"


_ANSWERS = {
    "401": "it refuses the user or the password (401); set MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, or ~/.mlflow/credentials",
    "403": "this user may not do that (403)",
}
"""What a server's status codes mean to the user."""


def reason(error: BaseException) -> str:
    """The innermost cause in a few words, without secrets: "ConnectionRefusedError: ..."."""
    inner = error
    while cause := inner.__cause__ or (not inner.__suppress_context__ and inner.__context__):
        inner = cause
    text = re.sub(r"\s+", " ", mask(str(inner))).strip()
    status = re.search(r"failed with error code (\d+)", text)
    if status and status[1] in _ANSWERS:
        return _ANSWERS[status[1]]
    text = text if len(text) <= 160 else text[:157] + "..."
    return f"{type(inner).__name__}: {text}"


def refused(error: BaseException) -> bool:
    """Whether MLflow answered, and said no: other runs may still be taken."""
    code = getattr(error, "error_code", None)
    return code is not None and code not in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")


def _chunks(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
