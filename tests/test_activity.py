"""What is waited for: one plain line in a log, counted seconds on a terminal."""

from __future__ import annotations

import io
import re
import sys
import time

import click
import pytest

from fedray.api.progress import RoundProgress
from fedray.base.activity import Escaping, end_waiting, say_next, seconds_of
from fedray.command import Command, run
from fedray.storage.run import Round


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What it shows, without colours, after each line was written again."""
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())
        return [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]


def at_a_terminal(monkeypatch) -> Terminal:
    """Make output and error output a terminal; a fixture's would be pytest's again in the test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", Escaping(shown))
    monkeypatch.setattr(sys, "stderr", Escaping(shown))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_a_log_and_a_plain_terminal_have_one_line(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    say_next("connecting")
    assert terminal.getvalue() == "connecting ...\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_counts_until_something_is_said(stream, monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    until = time.monotonic() + 200
    while "connecting ... 0 s" not in terminal.getvalue():
        assert time.monotonic() < until
        time.sleep(0.001)
    print("here", file=getattr(sys, stream))
    assert terminal.lines() == ["connecting ... 0 s", "here", ""]
    shown = terminal.getvalue()
    time.sleep(0.6)
    assert terminal.getvalue() == shown


def test_a_count_and_a_bar_end_each_other(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    with RoundProgress(2) as show:
        show(Round(0, 1.0, {"local_accuracy": 0.5}))
        print("a warning", file=sys.stderr)
        say_next("writing the rest to MLflow")
        end_waiting()
    shown = terminal.lines()
    assert shown[0] == "connecting ... 0 s"
    assert "a warning" in shown
    assert shown[-2:] == ["writing the rest to MLflow ... 0 s", ""]


def test_a_command_that_ends_ends_the_count(monkeypatch):
    terminal = at_a_terminal(monkeypatch)

    def act():
        say_next("waiting")
        raise KeyboardInterrupt

    assert run(click.command(cls=Command)(act), []) == 130
    assert terminal.lines() == ["waiting ... 0 s", "interrupted", ""]


def test_seconds_are_whole():
    assert [seconds_of(s) for s in (0.4, 9.9, 10.2, 75)] == ["0 s", "9 s", "10 s", "1 min 15 s"]
