"""Keep a local Ray private (loopback address, token, folder) and small (few processes).

The module uses private names of Ray: pyproject.toml bounds Ray's version, and
tests/runtime/test_private_names.py lists the names.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ray._common.utils import get_ray_address_file
from ray._private import ray_constants, services, utils, worker
from ray._private.node import Node

from fedray.errors import UserError, one_line
from fedray.storage.files import expanded

log = logging.getLogger(__name__)
_print = worker.print_to_stdstream
"""Ray's own function, which prints what workers print if another program has asked for it."""

OPEN = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OTHERS = stat.S_IRWXG | stat.S_IRWXO
ANSWER_SECONDS = 0.5
LONGEST_SOCKET = 103
"""Bytes of a socket's path: 103 on macOS, 107 on Linux."""
SOCKET = "/r/session_2026-11-27_18-30-00_000000_1234567/sockets/plasma_store"
"""The longest of Ray's sockets below the folder of `private_folder`."""
UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")
_IDLE = re.compile(r"^(--(?:maximum_startup_concurrency|num_prestart_python_workers)=)\d+$")
"""Flags of the raylet: idle processes that start at once, and their number at the start."""


def is_loopback(address: str) -> bool:
    """Return True if an address, with or without a port, is reachable from this machine only."""
    return address in LOOPBACK or address.rpartition(":")[0].strip("[]") in LOOPBACK


@contextmanager
def keep_loopback() -> Iterator[None]:
    """Keep Ray from replacing 127.0.0.1 by this machine's network address.

    With the network address, Ray's processes listen on all interfaces. Ray makes the replacement
    if a cluster may have several machines; it reads this from RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER at
    import, and the default on Linux is 1.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(OPEN, False)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def few_processes(idle: int) -> Iterator[None]:
    """Start Ray without the processes that a run does not use; saves two seconds of CPU time.

    These processes are the autoscaler's monitor, the log monitor and the dashboard head. The node's
    agent starts as if the dashboard's packages were missing, and opens no port.

    Args:
        idle: number of idle processes that Ray starts at once for tasks and actors. Ray's own
            number, one per CPU, is one short for a run whose workers use all CPUs, because its
            server is a process, too; Ray would start it only after the others.
    """
    patches: list[tuple[Any, str, Any]] = [
        (Node, name, lambda self, **options: None) for name in UNUSED
    ]
    no_dashboard = ImportError("no dashboard is started")
    patches.append((utils, "get_dashboard_dependency_error", lambda: no_dashboard))
    start = services.start_ray_process

    def start_with_idle(command: Sequence[str], *words: Any, **options: Any) -> Any:
        return start([_IDLE.sub(rf"\g<1>{idle}", word) for word in command], *words, **options)

    patches.append((services, "start_ray_process", start_with_idle))
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


@contextmanager
def quiet_about_tokens() -> Iterator[None]:
    """Keep Ray from saying whether its processes require a token, while a command joins them."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def shorten_notices() -> None:
    """Log one line of each notice of Ray, which would otherwise print up to forty.

    Notices of a killed raylet are left out: of this node, `runtime.liveness` tells; of another one,
    a second notice says that the node is dead.
    """

    def log_first_line(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data["pid"] != "raylet":
            _print(data, ignore_prefix)
            return
        for notice in data["lines"]:
            line = str(notice).strip().partition("\n")[0]
            if not line.startswith("Raylet is terminated"):
                log.warning("Ray: %s", one_line(line))

    worker.print_to_stdstream = log_first_line


def other_cluster() -> str | None:
    """Return the address of the cluster that Ray would join by default; None if none answers.

    `ray start` writes the address to a file, which remains if the cluster is killed.
    """
    try:
        address = Path(get_ray_address_file(None)).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return address if answers(address) else None


def answers(address: str) -> bool:
    """Return True if a process listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def token_path() -> Path:
    """Return the file of Ray's token."""
    configured = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return expanded(configured or "~/.ray/auth_token", "RAY_AUTH_TOKEN_PATH")


def guard_token() -> None:
    """Create Ray's token if it is missing, and remove other users' permission to read it.

    Ray itself writes the token with the current umask. Do nothing if tokens are disabled or the
    token is in the environment.

    Raises:
        UserError: if the token file cannot be written or holds no token.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_token(path)
        if path.is_file():
            _close_to_others(path)
    except OSError as error:
        raise UserError(
            f"Ray's token cannot be stored in {path} ({error.strerror}); set RAY_AUTH_TOKEN_PATH "
            "to a writable file, or run with --executor serial"
        ) from None
    if not path.is_file() or path.stat().st_size == 0:
        raise UserError(f"{path} is not a file with Ray's token; delete it to get a new one")


def _write_token(path: Path) -> None:
    """Write a new token atomically, readable by this user alone."""
    descriptor, temporary = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another run was faster; use its token
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _close_to_others(path: Path) -> None:
    """Remove other users' permissions, if the token is this user's and not a symbolic link."""
    status = path.stat()
    if not status.st_mode & OTHERS:
        return
    is_ours = status.st_uid == os.geteuid() and not path.is_symlink()
    advice = "; it belongs to another user or is a link, so it was not changed"
    if is_ours:
        path.chmod(status.st_mode & 0o700)
        advice = (
            " and is now private; if another user may have read it, delete it while you run no Ray"
        )
    mode = f"{status.st_mode & 0o777:o}"
    print(
        f"warning: Ray's token {path} was readable by other users (mode {mode}){advice}",
        file=sys.stderr,
    )


def private_folder() -> Path:
    """Return a folder for Ray's sockets and logs that only this user can enter.

    In Ray's default temporary folder, any user can replace its files. A temporary folder with a
    path that is too long for sockets, as batch systems set it, is replaced by /tmp.

    Raises:
        UserError: if the folder cannot be created, belongs to another user, or has a path that is
            too long.
    """
    chosen, name = os.environ.get("RAY_TMPDIR"), f"fedray-{os.geteuid()}"
    default = "/tmp" if sys.platform == "darwin" else tempfile.gettempdir()  # as Ray: short paths
    folder = Path(chosen or default, name)
    if _socket_bytes(folder) > LONGEST_SOCKET:
        if chosen:
            most = LONGEST_SOCKET - _socket_bytes(Path("/", name))
            raise UserError(
                f"RAY_TMPDIR={chosen} is too long for the paths of Ray's sockets; set it to a "
                f"folder whose path has at most {most} bytes, such as /tmp"
            )
        folder = Path("/tmp", name)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise UserError(
            f"{folder}, for Ray's sockets, cannot be created ({error.strerror}); set RAY_TMPDIR "
            "to a writable folder with a short path"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UserError(
            f"{folder}, for Ray's sockets, belongs to another user; set RAY_TMPDIR to a folder of "
            "yours with a short path"
        )
    if status.st_mode & OTHERS:
        folder.chmod(0o700)
    return folder


def _socket_bytes(folder: Path) -> int:
    return len(os.fsencode(folder)) + len(SOCKET)
