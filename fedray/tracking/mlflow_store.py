"""The tracking URI, and `Store`, the only code that writes to MLflow.

`Store.sync` brings one run in MLflow up to date. Any process can repeat a call after any failure,
because `sync` asks MLflow for its content and sends the rest. Time stamps of metrics are computed
from the run (its start and the seconds of its rounds), so that repeating a request whose answer was
lost adds nothing.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from fedray.errors import UserError, one_line
from fedray.markdown import escape_html
from fedray.masking import mask
from fedray.storage.files import cache_folder, node_lock, remedy_of
from fedray.tracking.describe import (
    ARTIFACT,
    MAX_TAG,
    NOTE_TAG,
    SECONDS,
    TOTALS,
    VIEW_LINK,
    TrackedRun,
    metrics_of,
    shorten,
    with_totals,
)
from fedray.tracking.view import VIEW, VIEW_TAG, runs_view, saved_view, view_path

KEY_TAG = "fedray.key"
PARENT_TAG = "mlflow.parentRunId"
KIND_TAG, MODEL_TRAINING = "mlflow.experimentKind", "custom_model_development"
"""Tag that makes MLflow 3 show an experiment as model training instead of agents."""
MARKER = SECONDS
"""The metric that is sent last; a round with this metric is complete."""
OURS = "<!-- written by fedray; delete this line to keep your own words -->\n"
"""First line of the descriptions that `sync` may replace."""
ARTIFACTS_FOLDER = "mlartifacts"
"""Folder of artifacts beside an sqlite database."""
MOST_ITEMS = {"params": 100, "tags": 100, "metrics": 1000}
"""MLflow's limits on a request; the last one also holds for all items together."""

_SQLITE = "sqlite:///"
_SPECIAL = {"%", "?"}
"""Characters that SQLAlchemy does not read literally in the path of a database."""
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # it may name hours
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


# --- tracking URI ---------------------------------------------------------------------------------


def resolve_uri(results: Path) -> str:
    """Return the absolute tracking URI: $MLFLOW_TRACKING_URI, or an sqlite database in `results`.

    Call it in the process that the user started: a relative URI depends on the working directory.

    Raises:
        UserError: if $MLFLOW_TRACKING_URI names a folder, which MLflow no longer writes to.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(results.resolve() / "mlflow.db")
    path = sqlite_path(uri)
    if path is not None:
        return sqlite_uri(path)
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise UserError(
            f"MLFLOW_TRACKING_URI={mask(uri)} is a folder, which MLflow no longer writes to; set "
            f"it to a server (http://host:5000) or a database ({_SQLITE}/absolute/path/mlflow.db)"
        )
    return uri


def sqlite_uri(path: Path) -> str:
    """Return the URI of an sqlite database; SQLAlchemy reads `%` and `?` of a path as its own.

    Raises:
        UserError: if the installed SQLAlchemy cannot open such a path.
    """
    if not _SPECIAL & set(str(path)):
        return f"{_SQLITE}{path}"
    from sqlalchemy import URL

    uri = URL.create("sqlite", database=str(path)).render_as_string()
    if sqlite_path(uri) != path:
        raise UserError(
            f"{path}: the installed SQLAlchemy opens no database below a folder with % or ? in "
            "its name; rename the folder, set MLFLOW_TRACKING_URI, or pip install -U sqlalchemy"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of an sqlite database; None for another URI."""
    if not uri.startswith(_SQLITE):
        return None
    if not _SPECIAL & set(uri):
        return Path(uri.removeprefix(_SQLITE)).resolve()
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "").resolve()


@contextmanager
def _no_stray_folder(uri: str) -> Iterator[None]:
    """Remove the empty folder that MLflow makes when it takes a quoted path literally."""
    literal = Path(uri.removeprefix(_SQLITE)).parent
    is_stray = sqlite_path(uri) is not None and not literal.exists()
    try:
        yield
    finally:
        if is_stray:
            with suppress(OSError):
                os.removedirs(literal)


def ui_command(uri: str) -> str:
    """Return the command that opens MLflow's UI, or its address, without secrets."""
    if uri.startswith(("http://", "https://")):
        return mask(uri)
    return f"mlflow ui --backend-store-uri {_in_shell(uri)} --port 5000"


def _in_shell(uri: str) -> str:
    """Return a tracking URI as a word of a command, without secrets."""
    return shlex.quote(uri) if mask(uri) == uri else '"$MLFLOW_TRACKING_URI"'


def check_installed() -> None:
    """Raise UserError if MLflow is missing, or a folder of that name shadows it; import nothing."""
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        places = ", ".join((spec and spec.submodule_search_locations) or ())
        hint = f" (import mlflow finds only the folder {places})" if places else ""
        raise UserError(
            f"mlflow is not installed{hint}; pip install 'mlflow>=3.17', or pass --no-track"
        )


# --- store ----------------------------------------------------------------------------------------


def set_environment() -> None:
    """Set defaults of MLflow's environment variables; call this before importing MLflow."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class Added:
    """How much one `sync` sent; `run_id` is the id of the run in MLflow."""

    run_id: str
    rounds: int = 0
    params: int = 0
    files: int = 0


@dataclass
class _Held:
    """The content of one run in MLflow, as far as `sync` needs it."""

    run_id: str
    started_ms: int  # time stamps of metrics count from it
    status: str
    ended_ms: int | None
    params: set[str]  # names
    tags: dict[str, str]
    data: set[str]  # digests of the data sets
    steps: set[int]  # rounds that are complete
    metrics: dict[str, float]  # last values


class _Batch:
    """Items of one run, sent in as few requests as MLflow accepts, in their order."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._items: dict[str, list[Any]] = {kind: [] for kind in MOST_ITEMS}

    def add(self, kind: str, items: Sequence[Any]) -> None:
        """Add items; those of one call go into one request if it can hold them."""
        most = MOST_ITEMS[kind]
        for start in range(0, len(items), most):
            new = items[start : start + most]
            held = len(self._items[kind]), sum(map(len, self._items.values()))
            if held[0] + len(new) > most or held[1] + len(new) > MOST_ITEMS["metrics"]:
                self.send()
            self._items[kind] += new

    def send(self) -> None:
        """Send all items."""
        if any(self._items.values()):
            self._client.log_batch(self._run_id, **self._items)
            self._items = {kind: [] for kind in MOST_ITEMS}


class Store:
    """One MLflow experiment.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        experiment: name of the experiment; created if missing.
        question: description of a new experiment; "" for none.

    Attributes:
        experiment_id: MLflow's id of the experiment; "" until `connect` has succeeded.
        notices: sentences about what `connect` changed in MLflow, for the user.
    """

    def __init__(self, uri: str, experiment: str, question: str = "") -> None:
        check_installed()
        self.uri = uri
        self.experiment = experiment
        self.question = question
        set_environment()
        self._client: Any = None
        self._views: set[str] = set()  # tags of the experiment
        self.experiment_id = ""
        self.notices: list[str] = []
        self._held: dict[str, _Held] = {}

    # The methods below raise the errors of MLflow, its server and its database.

    def connect(self) -> None:
        """Open MLflow and the experiment; create the database and the experiment if missing."""
        if self._client is not None:
            return
        from mlflow import MlflowClient

        path = sqlite_path(self.uri)
        location = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            location = (path.parent / ARTIFACTS_FOLDER).as_uri()
        with self._alone():
            if path is not None and not (path.is_file() and path.stat().st_size):
                _make_database(path)
            elif path is not None and _move_artifacts(path):
                self.notices.append(f"{path.parent} has moved; MLflow's artifacts are there now")
            with _no_stray_folder(self.uri):
                client = MlflowClient(tracking_uri=self.uri)
                self.experiment_id = self._open_experiment(client, location)
        self._client = client

    def sync(self, run: TrackedRun) -> Added:
        """Create the run in MLflow or find it by its key, and send the content that is missing.

        Params, tags and rounds in MLflow are not changed. Files, the description and the final
        metrics are sent once the run has ended. If a request fails, call `sync` again.
        """
        self.connect()
        with self._alone():
            held, rounds, params = self._sync_content(run)
        files = 0
        if not run.is_going:
            self._delete_empty_twins(held, run.key)
            try:
                files = self._add_files(held, run)
            except Exception as error:
                if refused(error):
                    raise
                raise UserError(
                    f"MLflow has its params and metrics, but not its files: "
                    f"{reason(error, self.uri)}; a server that serves artifacts can take them "
                    "(mlflow server --artifacts-destination DIR)"
                ) from error
        self._held[run.key] = held
        return Added(held.run_id, rounds, params, files)

    def _sync_content(self, run: TrackedRun) -> tuple[_Held, int, int]:
        """Send all but the files; return the run and how many rounds and params were sent."""
        held = self._held.pop(run.key, None)  # after a failure, ask MLflow again
        if held is None:
            held = self._open(run)
        elif not run.is_going:
            now = self._client.get_run(held.run_id).data
            held.tags |= now.tags  # a user may have written a description meanwhile
            held.metrics = now.metrics
        self._save_view(held, run)
        self._add_data(held, run)
        batch = _Batch(self._client, held.run_id)
        params = self._add_params_and_tags(held, run, batch)
        rounds = self._add_rounds(held, run, batch)
        if not run.is_going:
            self._add_final(held, run, batch)
            self._describe(held, run, batch)
        batch.send()
        self._set_status(held, run)  # before the files, whose server may be down
        return held, rounds, params

    # --- experiment and run -----------------------------------------------------------------------

    def _alone(self) -> AbstractContextManager[object]:
        """Return a lock for writing to a database.

        SQLite has one writer at a time, and MLflow's transactions fail or wait for each other: they
        read before they write. Two processes also must not create the same entry.
        """
        path = sqlite_path(self.uri)
        if path is None:
            return nullcontext()
        return FileLock(path.with_name(f".{path.name}.lock"), timeout=120)

    def _open_experiment(self, client: Any, location: str | None) -> str:
        view = saved_view(VIEW, 0, runs_view())
        tags = {KIND_TAG: MODEL_TRAINING, f"{VIEW_TAG}{VIEW}": view}
        if self.question:
            tags[NOTE_TAG] = escape_html(self.question)
        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                new = client.create_experiment(
                    self.experiment, artifact_location=location, tags=tags
                )
                return str(new)
            except Exception:
                experiment = client.get_experiment_by_name(self.experiment)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
            self.notices.append(
                f"the experiment {self.experiment} had been deleted in MLflow; it is restored, "
                "with its runs"
            )
        for name, value in tags.items():
            if name not in experiment.tags:
                client.set_experiment_tag(experiment.experiment_id, name, value)
        self._views = set(experiment.tags)
        return str(experiment.experiment_id)

    def _save_view(self, held: _Held, run: TrackedRun) -> None:
        """Save the view of a run's children with the experiment, unless it is there."""
        tag = f"{VIEW_TAG}{run.key}"
        if run.view and tag not in self._views:
            children = f"tags.`{PARENT_TAG}` = '{held.run_id}'"
            view = saved_view(run.name, run.started_ms, {**run.view, "searchFilter": children})
            self._client.set_experiment_tag(self.experiment_id, tag, view)
            self._views.add(tag)

    def _open(self, run: TrackedRun) -> _Held:
        run_id = self._find(run.key)
        if run_id is None:
            run_id = self._create(run)
        now = self._client.get_run(run_id)
        steps = set()
        if MARKER in now.data.metrics:
            history = self._client.get_metric_history(run_id, MARKER)
            steps = {point.step for point in history}
        return _Held(
            run_id=run_id,
            started_ms=now.info.start_time,
            status=now.info.status,
            ended_ms=now.info.end_time,
            params=set(now.data.params),
            tags=dict(now.data.tags),
            data={item.dataset.digest for item in now.inputs.dataset_inputs},
            steps=steps,
            metrics=now.data.metrics,
        )

    def _create(self, run: TrackedRun) -> str:
        made = self._client.create_run(
            self.experiment_id,
            start_time=run.started_ms,
            tags={KEY_TAG: run.key, **self._parent_tag(run)},
            run_name=run.name,
        )
        # A server may receive the request twice; all processes then use the same one of both runs.
        return (sqlite_path(self.uri) is None and self._find(run.key)) or str(made.info.run_id)

    def _find(self, key: str) -> str | None:
        """Return the id of the run with this key, or None.

        Runs in this experiment come before runs in others. Of several runs, return the one with the
        most content, because repeated and delayed requests leave empty runs.
        """
        twins = self._all_with(key, [self.experiment_id])
        if not twins:
            all_experiments = [
                experiment.experiment_id for experiment in self._client.search_experiments()
            ]
            twins = self._all_with(key, all_experiments)
        return str(max(twins, key=_fullness).info.run_id) if twins else None

    def _all_with(self, key: str, experiments: Sequence[str]) -> list[Any]:
        runs = self._client.search_runs(
            experiments, filter_string=f"tags.`{KEY_TAG}` = {_quoted(key)}", max_results=100
        )
        return sorted(runs, key=lambda run: str(run.info.run_id))

    def _delete_empty_twins(self, held: _Held, key: str) -> None:
        """Delete empty runs with this key, created by repeated or delayed requests."""
        for twin in self._all_with(key, [self.experiment_id]):
            is_empty = not (twin.data.metrics or twin.data.params)
            if is_empty and twin.info.run_id != held.run_id:
                self._client.delete_run(twin.info.run_id)

    def _parent_tag(self, run: TrackedRun) -> dict[str, str]:
        """Return the tag with the parent's id; {} if MLflow does not have the parent yet."""
        if run.parent is None:
            return {}
        held = self._held.get(run.parent)
        run_id = held.run_id if held is not None else self._find(run.parent)
        return {} if run_id is None else {PARENT_TAG: run_id}

    # --- content of a run -------------------------------------------------------------------------

    def _add_params_and_tags(self, held: _Held, run: TrackedRun, batch: _Batch) -> int:
        """Add the missing params and tags; return the number of params."""
        from mlflow.entities import Param, RunTag

        params = {name: value for name, value in run.params.items() if name not in held.params}
        tags = {
            name: shorten(value, MAX_TAG)
            for name, value in run.tags.items()
            if name not in held.tags
        }
        parent = self._parent_tag(run)  # the former one may have been deleted
        tags |= {name: value for name, value in parent.items() if held.tags.get(name) != value}
        batch.add("params", [Param(*item) for item in params.items()])
        batch.add("tags", [RunTag(*item) for item in tags.items()])
        held.params |= params.keys()
        held.tags |= tags
        return len(params)

    def _add_data(self, held: _Held, run: TrackedRun) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(item.name, item.digest, "fedray", item.source, profile=item.profile),
                [InputTag("mlflow.data.context", "clients")],
            )
            for item in run.data
            if item.digest not in held.data
        ]
        if inputs:
            self._client.log_inputs(held.run_id, inputs)
        held.data |= {item.digest for item in run.data}

    def _add_rounds(self, held: _Held, run: TrackedRun, batch: _Batch) -> int:
        """Add the missing rounds; return their number."""
        from mlflow.entities import Metric

        new = [pair for pair in with_totals(run.rounds) if pair[0].round not in held.steps]
        for done, totals in new:
            stamp = held.started_ms + round(1000 * totals[TOTALS[-1]])
            values = {**metrics_of(done), **totals}
            values[MARKER] = values.pop(MARKER)  # last
            points = [Metric(name, value, stamp, done.round) for name, value in values.items()]
            batch.add("metrics", points)
        held.steps |= {done.round for done, _ in new}
        return len(new)

    def _add_final(self, held: _Held, run: TrackedRun, batch: _Batch) -> None:
        """Add the final metrics that differ in MLflow, at the step of the last round."""
        from mlflow.entities import Metric

        step = max(held.steps, default=0)
        new = [
            Metric(name, value, self._ended_ms(held, run), step)
            for name, value in run.metrics.items()
            if repr(held.metrics.get(name)) != repr(float(value))  # NaN equals NaN
        ]
        batch.add("metrics", new)

    def _ended_ms(self, held: _Held, run: TrackedRun) -> int:
        if run.seconds is None:
            return int(time.time() * 1000)
        return held.started_ms + round(1000 * run.seconds)

    def _set_status(self, held: _Held, run: TrackedRun) -> None:
        """Set the status and the time of the end, which a trial's folder does not tell yet.

        FAILED and KILLED do not replace the status of a run that has ended.
        """
        ended = None if run.is_going else self._ended_ms(held, run)
        if run.status == held.status and (run.seconds is None or ended in (None, held.ended_ms)):
            return
        if ended is None:
            self._client.update_run(held.run_id, status="RUNNING")
        elif held.status in ("RUNNING", run.status) or run.status == "FINISHED":
            self._client.set_terminated(held.run_id, run.status, end_time=ended)
        else:
            return
        held.status, held.ended_ms = run.status, ended

    def _describe(self, held: _Held, run: TrackedRun, batch: _Batch) -> None:
        """Add the description with HTML escaped, unless a user has written one."""
        from mlflow.entities import RunTag

        note = run.note.replace(VIEW_LINK, f"({view_path(self.experiment_id, run.key)[1:]})")
        before = held.tags.get(NOTE_TAG, "")
        link = rf"get-artifact?run_uuid={held.run_id}&path=\1"
        text = shorten(OURS + re.sub(rf"{ARTIFACT}([\w.-]+)", link, escape_html(note)), MAX_TAG)
        if note and text != before and (not before or before.startswith(OURS.strip())):
            batch.add("tags", [RunTag(NOTE_TAG, text)])
            held.tags[NOTE_TAG] = text

    # --- files ------------------------------------------------------------------------------------

    def _add_files(self, held: _Held, run: TrackedRun) -> int:
        """Send files and texts that are missing or differ in size."""
        sizes: dict[str, dict[str, int | None]] = {}

        def has(folder: str, name: str, size: int) -> bool:
            if folder not in sizes:
                items = self._client.list_artifacts(held.run_id, folder or None)
                sizes[folder] = {item.path: item.file_size for item in items}
            return sizes[folder].get(f"{folder}/{name}" if folder else name) == size

        added = 0
        for path, folder in run.files:
            if path.is_file() and not has(folder, path.name, _size_of(path)):
                self._client.log_artifact(held.run_id, str(path), folder or None)
                added += 1
        for place, text in run.texts.items():
            folder, _, name = place.rpartition("/")
            if not has(folder, name, len(text.encode())):
                self._client.log_text(held.run_id, text, place)
                added += 1
        return added


_HAS_EXPERIMENTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'experiments'"


def _size_of(path: Path) -> int:
    """Return the size of a file of a run; raise UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _move_artifacts(path: Path) -> bool:
    """Correct the artifacts' folder in a database that was moved together with it.

    MLflow stores absolute addresses and has no call to change them. Only addresses of a folder
    `mlartifacts`, as `Store` gives them to its experiments, are changed.

    Returns:
        True if runs had their artifacts in a folder that `path` has left behind.
    """
    here = path.parent / ARTIFACTS_FOLDER
    with closing(sqlite3.connect(path, timeout=20)) as database, database:
        moved = False
        if not database.execute(_HAS_EXPERIMENTS).fetchone():
            return False
        for (uri,) in database.execute("SELECT DISTINCT artifact_location FROM experiments"):
            there = Path(unquote(urlsplit(uri or "").path))
            is_ours = (uri or "").startswith("file:///") and there.name == ARTIFACTS_FOLDER
            if not is_ours or there == here or (there.is_dir() and not here.is_dir()):
                continue
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                changed = database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (here.as_uri(), len(uri) + 1, uri, len(uri) + 1, f"{uri}/"),
                ).rowcount
            moved = moved or changed > 0  # the last table is that of runs
    return moved


def _make_database(path: Path) -> None:
    """Create an MLflow database at `path` atomically, from a copy of an empty one."""
    with TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as folder:
        new = Path(folder) / path.name
        try:
            shutil.copyfile(_template(), new)
        except OSError:  # the cache cannot be written
            _make_tables(new)
        os.replace(new, path)


def _template() -> Path:
    """Return an empty database of the installed MLflow version, created once in the cache.

    MLflow creates its tables by dozens of migrations, which take seconds.
    """
    path = cache_folder() / "mlflow" / f"{version('mlflow')}.db"
    if not path.is_file():
        with node_lock(path), TemporaryDirectory(suffix=".tmp", dir=path.parent) as folder:
            if not path.is_file():
                new = Path(folder) / path.name
                _make_tables(new)
                os.replace(new, path)
    return path


def _make_tables(path: Path) -> None:
    """Create an sqlite database with MLflow's tables, without the experiment Default.

    MLflow makes that experiment when it opens the database, and writes its own path there.
    """
    from mlflow import MlflowClient

    uri = sqlite_uri(path)
    with _no_stray_folder(uri):
        MlflowClient(tracking_uri=uri).search_experiments()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM experiments")


def _fullness(run: Any) -> tuple[float, int]:
    return run.data.metrics.get(TOTALS[-1], -1.0), len(run.data.params)


def _quoted(text: str) -> str:
    """Return a quoted string for MLflow's search language, which cannot escape quotes."""
    quote = "'" if '"' in text else '"'
    if quote in text:
        raise ValueError(f"the run's key {text!r} has both kinds of quotes")
    return f"{quote}{text}{quote}"


# --- errors --------------------------------------------------------------------------------------


_ANSWERS = {
    "401": "it refuses the user or the password (401); set MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, or ~/.mlflow/credentials",
    "403": "this user has no permission (403)",
}


_SCHEMA = re.compile(r"database schema \(found version (\w+), but expected (\w+)\)")
_OURS = (TypeError, AttributeError, LookupError, AssertionError, ValueError)
"""Errors of code, as opposed to those of a server, a database or a disk."""


def reason(error: BaseException, uri: str = "<database_uri>") -> str:
    """Return the innermost cause of an error, with its remedy if known, and without secrets.

    Args:
        error: an error of MLflow, its server or its database, or of a run's folder.
        uri: the tracking URI.
    """
    inner = error
    while cause := inner.__cause__ or (not inner.__suppress_context__ and inner.__context__):
        inner = cause
    text = one_line(inner)
    status = re.search(r"failed with error code (\d+)", text)
    if status and status[1] in _ANSWERS:
        return _ANSWERS[status[1]]
    if schema := _SCHEMA.search(text):
        return (
            f"another version of MLflow made its database (schema {schema[1]}; MLflow "
            f"{version('mlflow')} needs {schema[2]}); copy the database, then: mlflow db upgrade "
            f"{_in_shell(uri)}; if a newer MLflow made it, install that one"
        )
    if isinstance(inner, UserError):
        return text
    path = sqlite_path(uri)
    if isinstance(inner, sqlite3.OperationalError) and path is not None:
        inner = _as_os_error(inner, path)
    if isinstance(inner, OSError) and inner.filename and inner.errno:
        return f"{os.fsdecode(inner.filename)}: {inner.strerror}; {remedy_of(inner)}"
    ours = " (an error of fedray)" if _is_ours(error) else ""
    return f"{type(inner).__name__}: {text}{ours}"


def _as_os_error(error: sqlite3.Error, path: Path) -> Exception:
    """Return the OSError behind an error of SQLite, which names no file; else the error."""
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        number = errno.ENOSPC
    elif kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        number = errno.EACCES
    else:
        return error
    return OSError(number, os.strerror(number), str(path))


def refused(error: BaseException) -> bool:
    """Return True if the error concerns one run, so that MLflow may accept others."""
    code = getattr(error, "error_code", None)
    if code is not None:
        return code not in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
    return isinstance(error, UserError) or _is_ours(error)


def _is_ours(error: BaseException) -> bool:
    """Return True for an error of code; errors of requests are OSErrors, and ValueErrors too."""
    return isinstance(error, _OURS) and not isinstance(error, OSError)
