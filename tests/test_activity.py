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


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make output and error output a terminal, on which a count moves at once."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", Escaping(shown))
    monkeypatch.setattr(sys, "stderr", Escaping(shown))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return shown


def lines(shown: Terminal) -> list[str]:
    """What the terminal shows, without colours, after each line was written again."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
    return [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]


def wait_for(shown: Terminal, text: str) -> None:
    until = time.monotonic() + 200
    while text not in shown.getvalue():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_log_has_one_plain_line(capsys):
    say_next("connecting")
    assert capsys.readouterr().out == "connecting ...\n"


def test_a_terminal_that_cannot_write_a_line_again_has_one_plain_line(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    say_next("connecting")
    assert terminal.getvalue() == "connecting ...\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_counts_until_something_is_said(monkeypatch, stream):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    wait_for(terminal, "connecting ... 0 s")
    print("here", file=getattr(sys, stream))
    assert lines(terminal) == ["connecting ... 0 s", "here", ""]
    shown = terminal.getvalue()
    time.sleep(0.6)
    assert terminal.getvalue() == shown


def test_a_count_ends_a_bar(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    with RoundProgress(2) as show:
        show(Round(0, 1.0, {"local_accuracy": 0.5}))
        print("a warning", file=sys.stderr)
        before = len(lines(terminal))
        say_next("writing the rest to MLflow")
        end_waiting()
    shown = lines(terminal)
    assert shown[0] == "connecting ... 0 s"
    assert "a warning" in shown
    assert sum("writing the rest" in line for line in shown[before - 1 :]) == 1
    assert shown[-2:] == ["writing the rest to MLflow ... 0 s", ""]


def test_outside_of_a_command_other_output_stands_above_the_count(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", terminal)
    say_next("connecting")
    print("here")
    end_waiting()
    assert sys.stdout is terminal
    assert lines(terminal)[-3:] == ["here", "connecting ... 0 s", ""]


def test_each_wait_has_a_line_of_its_own(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    say_next("connecting")
    say_next("waiting")
    end_waiting()
    assert lines(terminal) == ["connecting ... 0 s", "waiting ... 0 s", ""]


def test_a_line_that_is_wider_than_the_terminal_is_whole(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    words = " ".join(f"word{number}" for number in range(20))
    say_next(words)
    end_waiting()
    assert " ".join(lines(terminal)).endswith(f"word13 {words[words.index('word14') :]} ... 0 s ")


def test_a_command_that_ends_ends_the_count(monkeypatch):
    terminal = at_a_terminal(monkeypatch)

    def act():
        say_next("waiting")
        raise KeyboardInterrupt

    assert run(click.command(cls=Command)(act), []) == 130
    assert lines(terminal) == ["waiting ... 0 s", "interrupted", ""]


def test_seconds_are_whole():
    assert [seconds_of(s) for s in (0.4, 9.9, 10.2, 75)] == ["0 s", "9 s", "10 s", "1 min 15 s"]
