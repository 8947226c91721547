"""Where runs are logged: the address of MLflow, its client, and its errors in one line."""

from __future__ import annotations

import importlib.util
import os
import shlex
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from filelock import FileLock

from fedray.base.errors import UserError, one_line
from fedray.base.masking import mask
from fedray.storage.files import results_home

_SQLITE = "sqlite:///"
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # it may name hours
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def resolve_uri() -> str:
    """Return the absolute tracking URI: $MLFLOW_TRACKING_URI, or a database with the results.

    Call it in the process that the user started: a relative URI depends on the working directory.

    Raises:
        UserError: if the URI names a folder, to which MLflow no longer writes.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    path = sqlite_path(uri) if uri else results_home().resolve() / "mlflow.db"
    if path is None and (uri.startswith("file:") or ("://" not in uri and uri != "databricks")):
        raise UserError(
            f"MLFLOW_TRACKING_URI={mask(uri)} is a folder, which MLflow no longer writes to; set "
            f"it to a server (http://host:5000) or a database ({_SQLITE}/absolute/path/mlflow.db)"
        )
    # SQLAlchemy decodes what follows a per cent sign
    return uri if path is None else _SQLITE + str(path).replace("%", "%25")


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of an sqlite database; None for another URI."""
    return Path(unquote(uri.removeprefix(_SQLITE))).resolve() if uri.startswith(_SQLITE) else None


def ui_command(uri: str, page: str = "") -> str:
    """Return the command that opens MLflow's UI, or its address, without secrets.

    The path of a page follows the address, or stands below the command.
    """
    if uri.startswith(("http://", "https://")):
        return mask(uri).rstrip("/") + page
    word = shlex.quote(uri) if mask(uri) == uri else '"$MLFLOW_TRACKING_URI"'
    then = f"\n  then open http://127.0.0.1:5000{page}" if page else ""
    return f"mlflow ui --backend-store-uri {word} --port 5000{then}"


def check_installed() -> None:
    """Raise UserError if MLflow is missing, or a folder of that name shadows it; import nothing."""
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        raise UserError("mlflow is not installed; pip install 'mlflow>=3.17', or pass --no-track")


def client_of(uri: str) -> Any:
    """Return MLflow's client of a store; create the database if missing."""
    check_installed()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    with alone(uri):
        return MlflowClient(tracking_uri=uri)


def alone(uri: str) -> AbstractContextManager[object]:
    """Return a lock for writing to a database.

    SQLite has one writer at a time, and MLflow's transactions fail or wait for each other: they
    read before they write. Two processes also must not create the same entry.
    """
    path = sqlite_path(uri)
    if path is None:
        return nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"), timeout=120)


def reason(error: BaseException, uri: str) -> str:
    """Return the innermost cause of an error of MLflow in one line, without secrets."""
    while cause := error.__cause__ or (not error.__suppress_context__ and error.__context__):
        error = cause
    text = one_line(error).replace("<database_uri>", mask(uri))
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
