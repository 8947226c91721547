"""What a command of this package would do, without doing it: its words, its experiments."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedray.cli import analyse
from fedray.cli.words import WORDS, word_of
from fedray.command import parsed
from fedray.config import Experiment
from fedray.errors import UserError, shown

RUN, SWEEP, TABLE, COST = (WORDS[word].module for word in ("run", "sweep", "table", "cost"))
ANALYSE = WORDS["analyse"].module
PYTHON_M = {"fedray.run": RUN, "fedray.sweep": SWEEP, "fedray.table": TABLE}
"""Modules that stand for those that read their words."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=")


class Words(NamedTuple):
    """A command of this package.

    Attributes:
        module: what reads and runs it.
        given: the words behind it.
    """

    module: str
    given: list[str]


class Asked(NamedTuple):
    """An experiment that a command would run.

    Attributes:
        label: a sweep's configuration in few words; "" for a single run.
        experiment: resolved.
    """

    label: str
    experiment: Experiment


def words_of(command: str, where: str = "") -> Words:
    """Take a command apart; variables of the environment before it are left out.

    Raises:
        UserError: when it is no command of this package.
    """
    prefix = f"{where}: " if where else ""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{prefix}{shown(command)} cannot be read ({error})") from None
    while words and _VARIABLE.match(words[0]):
        words.pop(0)
    if words[:2] == ["python", "-m"]:
        words = words[2:]
    if words[:1] == ["fedray"] and len(words) > 1:
        return Words(word_of(words[1]).module, words[2:])
    if not words or not re.fullmatch(r"fedray(\.\w+)+", words[0]):
        raise UserError(
            f"{prefix}{shown(command)} is no command of fedray; write fedray run ..., "
            "fedray sweep ..., or python -m with a module of the package"
        )
    return Words(PYTHON_M.get(words[0], words[0]), words[1:])


def check_command(command: str) -> list[Asked]:
    """Parse a command's words and resolve every experiment that it would run; run nothing.

    Returns:
        The experiments; none for a command that reads results, which are not there.

    Raises:
        UserError: as the command itself would say it.
        MissingRoot: when all that is wrong is that data is not here.
    """
    module, given = words_of(command)
    cli = analyse.parser(name=given[0]) if module == ANALYSE else parser_of(module)
    args = parsed(cli, given)
    if module == RUN:
        return _asked_by_run(args)
    if module == SWEEP:
        return _asked_by_sweep(args)
    if module == TABLE:
        return _asked_by_table(args)
    if module == COST:
        return _resolved(args.experiment, args.set)
    return []


def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser of a module that can be run.

    Raises:
        UserError: when there is no such module, or it takes no words.
    """
    for name in (module, f"{module}.__main__", f"{module}.command"):
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        if hasattr(found, "parser"):
            parser: argparse.ArgumentParser = found.parser()
            return parser
    raise UserError(f"python -m {module}: there is no such command")


def _asked_by_run(args: argparse.Namespace) -> list[Asked]:
    name: str | None = args.experiment
    pairs: Sequence[str] = args.set
    if args.resume is not None:
        return []
    if name is None or ("=" in name and not Path(name).is_file()):
        raise UserError("name an experiment, for example fedtsp_digits")
    return _resolved(name, pairs, args.plugin)


def _resolved(name: str, pairs: Sequence[str], plugins: Sequence[str] = ()) -> list[Asked]:
    from fedray.runtime.resolve import resolve

    return [Asked("", resolve(name, pairs, plugins))]


def _asked_by_table(args: argparse.Namespace) -> list[Asked]:
    from fedray.sweep.spec import words
    from fedray.tables.agenda import Cell
    from fedray.tables.spec import plan_table

    if args.table is None:
        raise UserError("name a table")
    plan = plan_table(args.table, args.set, args.scale, args.plugin)
    seed = plan.tuning.seeds[0]
    return [
        Asked(f"{place} {words(config)}", plan.experiment_of(place, config, "tuning", seed))
        for place in plan.places
        for config in Cell(plan, place).first
    ]


def _asked_by_sweep(args: argparse.Namespace) -> list[Asked]:
    from fedray.sweep.spec import check_configurations, plan_sweep, words

    if args.sweep is None:
        raise UserError("name a sweep")
    plan = plan_sweep(
        args.sweep, args.set, args.scale or "laptop", args.num_samples, plugins=args.plugin
    )
    configs = check_configurations(plan)
    return [Asked(words(config), plan.experiment_of(config, plan.seeds[0])) for config in configs]
