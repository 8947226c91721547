"""What is waited for: one plain line in a log, counted seconds on a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time

import click
import pytest

from fedray import activity
from fedray.activity import begin_bar, end_waiting, say_next, seconds_of
from fedray.api.progress import RoundProgress
from fedray.command import Command, run
from fedray.storage.run import Round


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make output and error output a terminal, on which a count moves at once."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(activity, "EVERY", 0.001)
    monkeypatch.setenv("COLUMNS", "80")
    return shown


def wait_for(shown: Terminal, text: str) -> None:
    until = time.monotonic() + 30
    while text not in shown.getvalue():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_log_has_one_plain_line(capsys):
    say_next("connecting")
    assert capsys.readouterr().out == "connecting ...\n"
    assert not isinstance(sys.stdout, activity._Ending)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_counts_until_something_is_said(monkeypatch, stream):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    wait_for(terminal, "\rconnecting ... 0 s")
    print("here", file=getattr(sys, stream))
    shown = terminal.getvalue()
    assert shown.endswith("\rconnecting ... 0 s\nhere\n")
    assert sys.stdout is sys.stderr is terminal
    time.sleep(0.01)
    assert terminal.getvalue() == shown


def test_a_count_ends_a_bar_that_would_print_each_second_on_a_line_of_its_own(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    calls: list[str] = []
    say_next("connecting")
    begin_bar(lambda: calls.append("start"), lambda: calls.append("stop"))
    assert sys.stdout is terminal, "the count has ended"
    assert calls == ["start"]
    say_next("writing")
    assert calls == ["start", "stop"]
    say_next("waiting")
    end_waiting()
    assert calls == ["start", "stop"]
    assert terminal.getvalue().count("\n") == 3


def test_the_count_after_a_bar_stays_on_one_line(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    with RoundProgress(2) as show:
        show(Round(0, 1.0, {"local_accuracy": 0.5}))
        before = terminal.getvalue().count("\n")
        say_next("writing the rest to MLflow")
        wait_for(terminal, "\rwriting the rest to MLflow ... 0 s")
        end_waiting()
    lines = terminal.getvalue().split("\n")[before:]
    assert sum("writing the rest" in line for line in lines) == 1


def test_each_wait_has_a_line_of_its_own(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    say_next("waiting")
    end_waiting()
    first, second, rest = terminal.getvalue().split("\n")
    assert first.startswith("connecting ...")
    assert second.startswith("waiting ...")
    assert rest == ""


def test_a_line_as_wide_as_the_terminal_is_not_written_again(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("x" * 75)
    wait_for(terminal, "\r0 s")
    end_waiting()
    assert terminal.getvalue().count("x") == 75
    assert terminal.getvalue().endswith("\r0 s\n")


def test_a_command_that_ends_ends_the_count(monkeypatch):
    terminal = at_a_terminal(monkeypatch)

    def act():
        say_next("waiting")
        raise KeyboardInterrupt

    assert run(click.command(cls=Command)(act), []) == 130
    assert terminal.getvalue().endswith("\ninterrupted\n")
    assert sys.stdout is terminal


def test_seconds_are_whole():
    assert [seconds_of(s) for s in (0.4, 9.9, 10.2, 75)] == ["0 s", "9 s", "10 s", "1 min 15 s"]


def test_print_outlives_the_stream_that_it_ends():
    """Python 3.11's `print` crashed: it kept no reference to the stream that the write replaced."""
    main, terminal = pty.openpty()
    code = "from fedray.activity import say_next; say_next('waiting'); print('here', 'and there')"
    ended = subprocess.run(
        [sys.executable, "-c", code], stdout=terminal, env={**os.environ, "PYTHONMALLOC": "debug"}
    )
    shown = os.read(main, 1000).decode()
    os.close(main)
    os.close(terminal)
    assert ended.returncode == 0
    assert shown.endswith("here and there\r\n")
