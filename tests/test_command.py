"""What every command has in common: its one line, its exit codes, how it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from fedray.base.errors import ClientError, CodeError, Failure, UserError, one_line
from fedray.command import PATH, Command, go_on_with, keys, run, signals_deferred

NOISY = "first\nsecond\r\x1b[31mred\x00 \ud800 " + "x" * 100_000


def ended(action, capsys, argv=()):
    """The exit code and what was said on stderr."""

    @click.command(cls=Command)
    @click.option("--out", type=PATH)
    @click.option("--number", type=click.IntRange(1, 9))
    @keys
    def command(**args):
        return action(args)

    return run(command, list(argv), "prog"), capsys.readouterr().err


def raising(error):
    def action(args):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError(NOISY), 2),
        (ValueError(NOISY), 1),
        (CodeError(Failure(NOISY)), 1),
        (ClientError(3, 1, "client_update", Failure(NOISY)), 1),
        (MemoryError(), 1),
        (RecursionError(), 1),
        (SystemExit(0), 1),
        (UnicodeDecodeError("utf-8", b"\xff" * 10_000, 0, 1, "bad\nbyte"), 1),
        (OSError(28, "No space left on device", "/x/y\n"), 2),
        (PermissionError(1, "Operation not permitted", b"/x/\xff"), 2),
        (PermissionError("no file"), 1),
        (ExceptionGroup("several\nat once", [ValueError("a"), KeyError("b")]), 1),
    ],
)
def test_one_line_for_whatever_is_raised(error, code, capsys):
    found, said = ended(raising(error), capsys)
    assert found == code
    assert said.startswith("error: " if code == 2 else "failed: ")
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    assert 10 < len(said) < 1500


def test_a_failure_is_one_line_too():
    assert Failure.of(ValueError(NOISY)).cause.isprintable()
    assert len(Failure.of(ValueError(NOISY)).cause) < 1500
    assert one_line("a\n b\x07") == "a b\\x07"


@pytest.mark.parametrize("argv", [["--number", "10"], ["--numbr", "1"]])
def test_wrong_words_are_one_sentence(argv, capsys):
    code, said = ended(lambda args: 0, capsys, argv)
    assert code == 2
    assert argv[0] in said
    assert said.count("\n") == 1


def test_help_is_no_failure(capsys):
    assert ended(raising(AssertionError("not reached")), capsys, ["--help"]) == (0, "")


@pytest.mark.parametrize(("error", "code"), [(KeyError("x"), 1), (UserError("x"), 2)])
def test_debug_prints_the_traceback_of_an_error(error, code, capsys):
    found, said = ended(raising(error), capsys, ["--debug"])
    assert found == code
    assert said.startswith("Traceback")
    assert "in action" in said


# --- stopped ---------------------------------------------------------------------------------

STOPS = [(signal.SIGTERM, 143, "terminated\n"), (signal.SIGINT, 130, "interrupted\n")]


@pytest.fixture(autouse=True)
def _interrupts():
    """Ctrl-C raises an exception, also where a shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code", "said"), STOPS)
@pytest.mark.parametrize("again", [False, True])
def test_a_signal_closes_what_is_open_also_when_a_second_one_comes(
    number, code, said, again, capsys
):
    closed = []

    def action(args):
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            if again:
                os.kill(os.getpid(), signal.SIGTERM)
            closed.append(True)

    if number == signal.SIGINT and again:
        return  # a second Ctrl-C is for whoever does not want to wait
    before = signal.getsignal(signal.SIGTERM)
    assert ended(action, capsys) == (code, said)
    assert closed
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_library_that_raises_something_else_for_a_signal(capsys):
    def action(args):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray does when a signal ends its waits

    assert ended(action, capsys) == (143, "terminated\n")
    assert ended(raising(KeyboardInterrupt()), capsys) == (130, "interrupted\n")


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize(("number", "code", "said"), STOPS)
def test_a_block_that_must_not_be_cut_ends_first_unless_a_second_signal_comes(
    capsys, number, code, said, signals
):
    done = []

    def action(args):
        with signals_deferred():
            for _ in range(signals):
                os.kill(os.getpid(), number)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
            done.append("the block")
        done.append("more")

    assert ended(action, capsys) == (code, said)
    assert done == ["the block"] * (signals == 1)


def test_signals_are_as_before_after_the_block_and_in_other_threads():
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    with signals_deferred():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is signal.SIG_IGN
    with ThreadPoolExecutor(1) as pool:

        def block():
            with signals_deferred():
                return signal.getsignal(signal.SIGTERM)

        assert pool.submit(block).result() is signal.getsignal(signal.SIGTERM)


def test_the_command_that_goes_on_can_be_pasted_into_a_shell():
    words = ("fedray.sweep", "mine", "--out", Path("/a b"))
    assert go_on_with(*words).endswith("python -m fedray.sweep mine --out '/a b'")


@pytest.mark.slow
def test_nobody_reads_the_output():
    program = (
        "import click\n"
        "from fedray.command import Command, run\n"
        "@click.command(cls=Command)\n"
        "def action():\n"
        "    for _ in range(100_000): print('a line')\n"
        "raise SystemExit(run(action, []))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
def test_a_terminal_that_lacks_a_character_gets_another_one():
    words = [sys.executable, "-m", "fedray", "show", "fedtsp_lambda"]  # the page has a lambda
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")
