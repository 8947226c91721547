"""What keeps a Ray on this machine to its user: the loopback address, the token, its folder.

And what keeps it small: the processes that it does without.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ray._common.utils import get_ray_address_file
from ray._private import ray_constants, utils
from ray._private.node import Node

from fedray.errors import UserError

OPEN = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OTHERS = stat.S_IRWXG | stat.S_IRWXO
ANSWER_SECONDS = 0.5
UNASKED = ("start_monitor", "start_log_monitor", "start_api_server")


def is_loopback(address: str) -> bool:
    """Whether `address`, with or without a port, can be reached from this machine alone."""
    return address in LOOPBACK or address.rpartition(":")[0].strip("[]") in LOOPBACK


@contextmanager
def loopback_kept() -> Iterator[None]:
    """Let Ray take 127.0.0.1 as it is.

    Where several machines may form a cluster, Ray replaces it by this machine's address in the
    network, and its processes then listen on all addresses. The environment variable
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER says whether they may; Ray reads it once, when it is
    imported, and takes 1 for the default on Linux.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(OPEN, False)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def few_processes() -> Iterator[None]:
    """Have Ray start without what nobody here asks: two seconds of a processor's time.

    That is the autoscaler's monitor, the reader of the workers' logs, which are not shown, and the
    dashboard's head, which without a dashboard only counts who uses Ray. The node's agent starts as
    it does where Ray is installed without the dashboard's packages, and opens no port.
    """
    before = {name: getattr(Node, name) for name in UNASKED}
    asked, utils.get_dashboard_dependency_error = utils.get_dashboard_dependency_error, _not_asked
    for name in UNASKED:
        setattr(Node, name, lambda self, **options: None)
    try:
        yield
    finally:
        utils.get_dashboard_dependency_error = asked
        for name, start in before.items():
            setattr(Node, name, start)


def _not_asked() -> ImportError:
    return ImportError("no dashboard is started")


def other_cluster() -> str | None:
    """The address of the cluster that Ray would join by itself, if anyone answers there.

    `ray start` leaves it in a file in Ray's temporary folder, which an unclean end does not remove.
    """
    try:
        address = Path(get_ray_address_file(None)).read_text(encoding="utf-8").strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return address
    except (OSError, ValueError, OverflowError):
        return None


def guard_token() -> None:
    """Make Ray's token if there is none, and take it from other users if they can read it.

    Ray itself would write it with the umask of the moment. Nothing is done where tokens are
    switched off or the token is in the environment.

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
        _close_to_others(path)
    except OSError as error:
        raise UserError(
            f"Ray's token cannot be kept in {path} ({error.strerror}); name a file that can be "
            "written with RAY_AUTH_TOKEN_PATH, or run with --executor serial"
        ) from None
    if not path.is_file() or path.stat().st_size == 0:
        raise UserError(f"{path} should be a file with Ray's token; delete it to get a new one")


def _write_token(path: Path) -> None:
    """A new token, readable by nobody else from the start, and there whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another run was faster: its token is ours
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _close_to_others(path: Path) -> None:
    """Take from others what they may do with a file of ours; never through a symbolic link."""
    if not path.is_file() or not path.stat().st_mode & OTHERS:
        return
    found = f"Ray's token {path} could be read by others (mode {path.stat().st_mode & 0o777:o})"
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        print(f"warning: {found}; it is not ours to change", file=sys.stderr)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o700)
    finally:
        os.close(descriptor)
    print(
        f"warning: {found}, and is yours alone now; if somebody may have read it, delete it when "
        "no Ray of yours is running",
        file=sys.stderr,
    )


def private_folder() -> Path:
    """A folder for Ray's sockets and logs that only we can enter.

    Ray lets everybody write into its own temporary folder, and so replace what is in there.

    Raises:
        UserError: when somebody else has made the folder.
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
