"""The words of the command `fedray`, each as a function of what stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedray.cli.main import main


def _word(name: str) -> Callable[[Sequence[str]], int]:
    return lambda argv: main([name, *argv])


analyse, check, convert, cost, cp, data, doctor, generate, ls, new, papers, predict, report, run, \
    show, sweep, table, upload = map(
        _word,
        ("analyse", "check", "convert", "cost", "cp", "data", "doctor", "generate", "ls", "new",
         "papers", "predict", "report", "run", "show", "sweep", "table", "upload"),
    )  # fmt: skip
