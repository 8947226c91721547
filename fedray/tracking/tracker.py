"""`Tracker`: a `fedray upload --follow` as a child of the process that runs an experiment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedray.activity import end_waiting, say_next
from fedray.masking import mask
from fedray.storage.run import Status
from fedray.tracking.folder import uri_of
from fedray.tracking.mlflow_store import check_installed, ui_command
from fedray.tracking.uploader import CLOSE_SECONDS, VIEW_THEM

QUIET_SECONDS = 0.5
"""Wait at the end before a message is printed."""
_MARGIN_SECONDS = 10.0
"""Time for a child that says itself what MLflow lacks."""


class Tracker:
    """Keeps MLflow up to date with a folder, in a child process, so that runs never wait for it.

    The child outlives this process until MLflow has the last state; then a run that was killed is
    KILLED there. A child that died is replaced at the end.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        folder: the folder of a run or study.

    Attributes:
        hint: how to view the runs: a command, and the addresses of the pages if known.

    Raises:
        UserError: if MLflow is not installed.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        check_installed()
        self.uri = uri
        self.hint = ui_command(uri)
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the child, unless it runs; importing MLflow takes it seconds of a processor."""
        if self._process is not None:
            return
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedray", "upload", "--follow", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MLFLOW_TRACKING_URI": self.uri,  # may hold a password, which arguments would show
            },
            start_new_session=True,  # not reached by Ctrl-C, so that the last state is still sent
        )
        self._reader = threading.Thread(target=self._read, args=[process.stdout], daemon=True)
        self._reader.start()

    def _read(self, lines: Iterable[str]) -> None:
        """Print what the child says."""
        for line in lines:
            if line.startswith(VIEW_THEM):
                self.hint = line.removeprefix(VIEW_THEM).rstrip()
            elif line.startswith("  "):
                self.hint += f"\n{line.rstrip()}"
            else:
                say(line.rstrip())

    def close(self, status: Status | None = None, wait_seconds: float | None = None) -> None:
        """Wait for a limited time until MLflow has the last state, and end the child.

        A child that has not started has nothing to send, unless the run has finished.

        Args:
            status: how a run ended; None: as its files, or those of the study, say.
            wait_seconds: the longest wait; None: `CLOSE_SECONDS`.
        """
        if self._process is None and status != "FINISHED":
            return
        wait = CLOSE_SECONDS if wait_seconds is None else wait_seconds
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it died
        self.start()
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        try:
            with suppress(OSError), process.stdin:
                process.stdin.write(f"{status} {wait}")
            self._reader.join(QUIET_SECONDS)
            if self._reader.is_alive():
                say_next("writing the rest to MLflow")
                self._reader.join(wait + _MARGIN_SECONDS)
                end_waiting()
            if self._reader.is_alive() or process.wait() not in (0, 1):
                say(
                    f"MLflow at {mask(self.uri)} does not have everything (the process that "
                    "writes to it ended unexpectedly); the results are complete. To upload them: "
                    f"fedray upload {shlex.quote(str(self._folder))}"
                )
        finally:
            process.kill()
            process.wait()


def tracker_for(folder: Path) -> Tracker:
    """Return a tracker for a run or study, at the address that `uri_of` returns."""
    uri, notice = uri_of(folder)
    if notice:
        say(notice)
    return Tracker(uri, folder)


def say(what: str) -> None:
    """Print a message about tracking."""
    print(f"tracking: {what}", file=sys.stderr, flush=True)
