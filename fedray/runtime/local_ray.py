"""Keep a local Ray private (loopback address, token, folder) and small (few processes).

This module uses private names of Ray. pyproject.toml bounds Ray's version, and
tests/runtime/test_private_names.py lists the names.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ray._common.utils import get_ray_address_file
from ray._private import ray_constants, utils
from ray._private.node import Node

from fedray.errors import UserError

OPEN = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OTHERS = stat.S_IRWXG | stat.S_IRWXO
ANSWER_SECONDS = 0.5
UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")


def is_loopback(address: str) -> bool:
    """Return True if only this machine reaches an address, which may have a port."""
    return address in LOOPBACK or address.rpartition(":")[0].strip("[]") in LOOPBACK


@contextmanager
def loopback_kept() -> Iterator[None]:
    """Keep Ray from replacing 127.0.0.1 by this machine's network address.

    With that address, Ray's processes listen on all addresses. Ray replaces it where several
    machines may form a cluster, which it reads from RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER when it is
    imported; the default on Linux is 1.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(OPEN, False)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def few_processes() -> Iterator[None]:
    """Have Ray start without processes that a run does not use; saves two seconds of CPU time.

    These are the autoscaler's monitor, the reader of the workers' logs, and the dashboard's head.
    The node's agent starts as if the dashboard's packages were missing, and opens no port.
    """
    patches: list[tuple[Any, str, Any]] = [
        (Node, name, lambda self, **options: None) for name in UNUSED
    ]
    no_dashboard = ImportError("no dashboard is started")
    patches.append((utils, "get_dashboard_dependency_error", lambda: no_dashboard))
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


def other_cluster() -> str | None:
    """Return the address of the cluster that Ray would join by itself; None if nobody answers.

    `ray start` writes it into a file, which stays if the cluster is killed.
    """
    try:
        address = Path(get_ray_address_file(None)).read_text(encoding="utf-8").strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return address
    except (OSError, ValueError, OverflowError):
        return None


def guard_token() -> None:
    """Create Ray's token if there is none, and remove other users' permission to read it.

    Ray itself would write it with the current umask. Do nothing if tokens are switched off or
    the token is in the environment.

    Raises:
        UserError: when the token's file cannot be written or has no token.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(given) if given else Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_token(path)
        if path.is_file():
            _close_to_others(path)
    except OSError as error:
        raise UserError(
            f"Ray's token cannot be kept in {path} ({error.strerror}); name a file that can be "
            "written with RAY_AUTH_TOKEN_PATH, or run with --executor serial"
        ) from None
    if not path.is_file() or path.stat().st_size == 0:
        raise UserError(f"{path} should be a file with Ray's token; delete it to get a new one")


def _write_token(path: Path) -> None:
    """Write a new token atomically, readable by this user alone."""
    descriptor, temporary = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another run was faster: its token is ours
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _close_to_others(path: Path) -> None:
    """Remove other users' permissions from a token of ours that is no symbolic link."""
    status = path.stat()
    if not status.st_mode & OTHERS:
        return
    is_ours = status.st_uid == os.geteuid() and not path.is_symlink()
    advice = "; it is not ours to change"
    if is_ours:
        path.chmod(status.st_mode & 0o700)
        advice = (
            ", and is yours alone now; if somebody may have read it, delete it when no Ray of "
            "yours is running"
        )
    mode = f"{status.st_mode & 0o777:o}"
    print(
        f"warning: Ray's token {path} could be read by others (mode {mode}){advice}",
        file=sys.stderr,
    )


def private_folder() -> Path:
    """Return a folder for Ray's sockets and logs that only this user can enter.

    Everybody can write into Ray's own temporary folder, and so replace its files.

    Raises:
        UserError: when the folder cannot be made or belongs to another user.
    """
    default = "/tmp" if sys.platform == "darwin" else tempfile.gettempdir()  # as Ray: short paths
    folder = Path(os.environ.get("RAY_TMPDIR") or default, f"fedray-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UserError(
            f"{folder}, for Ray's sockets, cannot be made ({error.strerror}); name a folder with "
            "a short path that can be written with RAY_TMPDIR"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UserError(
            f"{folder}, for Ray's sockets, belongs to somebody else; name a folder of yours with a "
            "short path with RAY_TMPDIR"
        )
    if found.st_mode & OTHERS:
        folder.chmod(0o700)
    return folder
