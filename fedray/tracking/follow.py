"""MLflow follows a folder in a child process, so that training never waits for it.

A run uses `tracking`, whose process `fedray upload --follow FOLDER` calls `follow_folder`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedray.base.activity import end_waiting, say_next
from fedray.base.masking import mask
from fedray.tracking.store import check_installed, reason, resolve_uri, ui_command
from fedray.tracking.sync import sync

CLOSE_SECONDS = 10.0
"""Longest wait at the end of a run; afterwards the child goes on alone."""
EVERY_SECONDS = 5.0
"""Shortest pause between two looks at a folder."""
SHARE = 0.05
"""Largest share of a run's time in which `follow_folder` works."""


@contextmanager
def tracking(folder: Path, *, track: bool = True) -> Iterator[Callable[[], None]]:
    """Log what happens in a folder to MLflow; yield a function that starts this.

    Call it after the first round, so that a run that fails before is not logged. At the end, how
    to view the runs is printed.

    Raises:
        UserError: if MLflow is not installed, or its address cannot be used.
    """
    if not track:
        yield lambda: None
        return
    check_installed()
    uri, started = resolve_uri(), list[subprocess.Popen[str]]()
    hint = ui_command(uri)

    def start() -> None:
        if not started:
            started.append(_child(folder, uri))

    try:
        yield start
        start()
    finally:
        for child in started:
            hint = _close(child, folder) or hint
    print(f"compare: {hint}")


def _child(folder: Path, uri: str) -> subprocess.Popen[str]:
    """Start `fedray upload --follow`, which imports MLflow, seconds of a processor.

    The process outlives this one until MLflow has the last state; then a run that was killed is
    KILLED there.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedray", "upload", "--follow", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MLFLOW_TRACKING_URI": uri,  # may hold a password, which arguments would show
        },
        start_new_session=True,  # not reached by Ctrl-C, so that the last state is still sent
    )


def _close(child: subprocess.Popen[str], folder: Path) -> str:
    """Tell the child that the run has ended, wait a limited time, and return what it printed."""
    say_next("writing the rest to MLflow")
    try:
        return child.communicate(timeout=CLOSE_SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        say(f"another process writes the rest to MLflow; if it is ended: {again(folder)}")
        return ""
    finally:
        end_waiting()
        if child.returncode not in (None, 0, 1):
            say(f"the process that writes to MLflow has died; to go on: {again(folder)}")


def say(what: str) -> None:
    """Print a message about tracking."""
    print(f"tracking: {what}", file=sys.stderr, flush=True)


def again(folder: Path) -> str:
    """Return the command that uploads a folder."""
    return f"fedray upload {shlex.quote(str(folder))}"


def follow_folder(folder: Path, uri: str, say: Callable[[str], object] = say) -> bool:
    """Keep MLflow up to date with a folder until standard input ends, then write its last state.

    A store that fails is tried again. Its first failure, and one at the end, are said while the
    parent process lives. At the end, how to view the runs is printed to standard output.

    Args:
        folder: the folder of a run or study, whose files may not exist yet.
        uri: an absolute tracking URI.
        say: prints a message.

    Returns:
        True if MLflow has everything.
    """
    ended, parent, sent = threading.Event(), os.getppid(), dict[str, object]()
    threading.Thread(target=_wait_for_end, args=[ended], daemon=True).start()
    is_over, has_failed, why, pause = False, False, "", 0.0
    while not is_over:
        is_over, began = ended.wait(pause), time.monotonic()
        try:
            done = sync(folder, uri, going=not is_over, sent=sent)
            why = "; ".join(done.problems)
            if is_over and done.page:
                print(ui_command(uri, done.page), flush=True)
        except Exception as error:
            why = reason(error, uri)
        if why and (is_over or not has_failed) and os.getppid() == parent:
            say(f"MLflow at {mask(uri)} lacks a part ({why}); to upload it: {again(folder)}")
            has_failed = True
        pause = max(EVERY_SECONDS, (time.monotonic() - began) / SHARE)
    return not why


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()
