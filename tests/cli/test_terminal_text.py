"""Control characters of strangers never reach a terminal."""

from __future__ import annotations

import logging
import sys

import click
import pytest

from fedray import command
from fedray.cli.names import ShownKey, print_settings
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections

HOSTILE = {
    "clear": "\x1b[2J",
    "title": "\x1b]0;mine\x07",
    "clipboard": "\x1b]52;c;bWluZQ==\x07",
    "back": "ab\b\b",
    "return": "accuracy 1\raccuracy 9",
    "C1": "\x9b2J",
    "hidden": "\x1b[8m",
    "hidden too": "\x1b[0;8m",
    "right to left": "\u202egnp.exe",
    "line": "a\u2028b",
    "NUL": "\0",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("printer", [print, click.echo, lambda text: sys.stdout.write(f"{text}\n")])
def test_what_a_command_prints_has_no_control_characters(capsys, printer, text):
    def show() -> None:
        printer(f"name {text}")

    assert command.run(click.Command("show", callback=show), []) == 0
    written = capsys.readouterr().out
    assert written.rstrip("\n").isprintable()
    assert written.startswith("name ")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("say", ["log", "print"])
def test_what_a_command_warns_of_has_none_either(capsys, monkeypatch, say, text):
    def show() -> None:
        if say == "print":
            print(f"name {text}", file=sys.stderr)
        else:
            logging.getLogger("fedray").warning("name %s", text)

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # as in a process without pytest
    assert command.run(click.Command("show", callback=show), []) == 0
    written = capsys.readouterr().err
    assert written.rstrip("\n").isprintable()
    assert written.startswith("name ")


@pytest.mark.parametrize(
    "text", ["\x1b[1mbold\x1b[0m", "\x1b[1;31mred\x1b[0m", "é ± 1\t2\n", "\r3 s"]
)
def test_bold_colours_tabs_and_counts_stay(capsys, text):
    def show() -> None:
        sys.stdout.write(text)

    assert command.run(click.Command("show", callback=show), []) == 0
    assert capsys.readouterr().out == text


def test_the_streams_are_the_old_ones_afterwards():
    before = sys.stdout, sys.stderr
    command.run(click.Command("show", callback=lambda: None), [])
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("text", ["a\nround 9: 99 %", "a\x1b[2Jb", "a\u202eb"])
def test_a_value_is_one_line(capsys, text):
    print_settings([ShownKey("key", text, "source"), ShownKey("key", [text], "source")])
    print_sections([Section(text, header=[text, "b"], rows=[[text, "1"]])])
    assert "\nround 9" not in capsys.readouterr().out
