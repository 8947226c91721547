"""The time that is left: steady, and without what the first round costs alone."""

from __future__ import annotations

import io
import re
import sys

import click

from fedray.api.progress import RoundProgress
from fedray.command import run
from fedray.storage.run import Round


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_left_is_the_mean_of_the_rounds_after_the_first(capsys):
    with RoundProgress(10) as show:
        for number, seconds in enumerate((9.0, 60.0, 4.0, 6.0)):
            show(Round(number, seconds, {"local_accuracy": 0.5}))
    left = [line.partition("left ")[2] for line in capsys.readouterr().out.splitlines()]
    assert left == ["", "", "32 s", "35 s"]


def test_a_bar_counts_seconds_and_the_last_round_has_nothing_left(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with RoundProgress(3) as show:
        for number in range(4):
            show(Round(number, 1.0, {"local_accuracy": 0.5}))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).rstrip().splitlines()
    assert re.search(r"round 3/3 ━+ 0 s finishing *$", lines[-1].split("\r")[-1])
    rounds = [line.strip() for line in lines if line.startswith("round") and "accuracy" in line]
    assert rounds == [f"round {n}/3  accuracy 0.5000  1.0 s" for n in range(4)]


def test_a_bar_of_a_command_reaches_the_terminal_as_it_is(monkeypatch):
    """A command escapes control characters of strangers, not those of its own bar."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")

    @click.command()
    def command() -> None:
        with RoundProgress(1) as show:
            show(Round(0, 1.0, {"local_accuracy": 0.5}))
            print("a stranger's \x1b[2J\x1b]0;title\x07")

    assert run(command, []) == 0
    text = shown.getvalue()
    assert "\\x1b" not in text.replace("\\x1b[2J", "")
    assert "\x1b[?25l" in text
    assert "\x1b[2J" not in text
    assert "\x07" not in text
