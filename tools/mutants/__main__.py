"""`python -m tools.mutants [NAME|PART ...]`; see the package."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.mutants.table import (
    Mutant,
    first_failure,
    nearest_tests,
    planted,
    read_table,
    wrong_place,
)
from tools.recordings.__main__ import QUIET, ROOT, worktree

TESTS: Mapping[str, str] = {
    "core": "core equations invariants test_federation.py runtime/test_serial.py",
    "federation": "test_federation.py test_joining.py core invariants evaluation api equations",
    "evaluation": "evaluation trained test_federation.py test_scenarios.py invariants equations",
    "privacy": "core/test_privacy.py evaluation/test_accountant.py runtime/test_private_runs.py",
    "data": "data test_scenarios.py config evaluation invariants",
    "algorithms": "equations originals test_prompt_methods.py test_evolving_methods.py invariants",
    "models": "models test_prompt_methods.py equations trained invariants",
    "language": "language equations",
    "runtime": "runtime invariants faults storage equations",
    "storage": "storage faults runtime invariants trained",
    "tracking": "tracking studies/test_sweep_in_mlflow.py",
    "config": "config plugins storage studies runtime",
    "studies": "studies",
    "results": "results studies",
    "cli": "cli invariants studies/test_verify.py",
    "api": "api cli tracking",
    "trained": "trained",
}
"""Part -> files and folders of tests that may see its mutants, the likeliest first."""
NEAREST = 8
"""Test files that run first."""
SURVIVED, UNDECIDED = "survived", "undecided"
RED = "fails without it, too: "
"""Beginning of the outcome of a test that cannot decide, because it fails in HEAD as well."""


def tests_of(mutant: Mutant, root: Path, *, near: bool, slow: bool) -> list[str]:
    """Return the command that runs tests for a mutant, those of the first tier by default.

    The nearest tests come first, then those of the mutant's part, unless `near` is set.
    """
    files = (root / "tests").rglob("test_*.py")
    texts = {str(path): path.read_text(encoding="utf-8") for path in files}
    places = nearest_tests(root, mutant, texts, NEAREST)
    further = [] if near else [str(root / "tests" / place) for place in TESTS[mutant.part].split()]
    places += [place for place in further if Path(place).exists()]
    marks = ["-m", "not long"] if slow else []
    return [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *marks, *places]


def outcome_of(words: Sequence[str], root: Path, seconds: float) -> str:
    """Return what a command says of the planted mutant: what killed it, or that it survived."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(root)}
    try:
        with TemporaryDirectory(prefix="cache-") as cache:  # what a mutant reads is not kept
            done = subprocess.run(
                words,
                cwd=root,
                env={**environment, "FEDRAY_CACHE": cache},
                capture_output=True,
                text=True,
                timeout=seconds,
            )
    except subprocess.TimeoutExpired:
        return UNDECIDED
    return SURVIVED if done.returncode == 0 else first_failure(done.stdout or done.stderr)


def is_red(test: str, root: Path, red: dict[str, bool]) -> bool:
    """Return True if a test fails without a mutant; `red` holds the tests that were tried."""
    if test not in red:
        words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", test]
        red[test] = "::" in test and outcome_of(words, root, 600) != SURVIVED
    return red[test]


def commands_for(mutant: Mutant, root: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the commands that look for a mutant, by kind."""
    given = {kind: shlex.split(text) for kind, _, text in (w.partition("=") for w in args.run)}
    own = {} if args.no_tests else {"tests": tests_of(mutant, root, near=args.near, slow=args.slow)}
    return {**own, **given}


def print_summary(found: Mapping[Mutant, Mapping[str, str]]) -> None:
    """Print by part how many mutants each kind of command killed, and by which folders of tests."""
    kinds = list(dict.fromkeys(kind for outcomes in found.values() for kind in outcomes))
    print(f"\n{'part':<12}{'mutants':>8}" + "".join(f"{kind:>10}" for kind in [*kinds, "any"]))
    parts = dict.fromkeys(mutant.part for mutant in found)
    for part in [*parts, "all"]:
        rows = [outcomes for m, outcomes in found.items() if part in (m.part, "all")]
        killed = [[is_kill(row[kind]) for kind in kinds] for row in rows]
        counts = [sum(column) for column in zip(*killed, strict=True)] + [sum(map(any, killed))]
        print(f"{part:<12}{len(rows):>8}" + "".join(f"{count:>10}" for count in counts))
    by = Counter(
        "/".join(text.partition("::")[0].split("/")[:2])
        for outcomes in found.values()
        for text in outcomes.values()
        if is_kill(text)
    )
    print("killed by", ", ".join(f"{place} {count}" for place, count in by.most_common()))


def is_kill(outcome: str) -> bool:
    """Return True if a command has found the mutant."""
    return outcome not in (SURVIVED, UNDECIDED) and not outcome.startswith(RED)


def main(argv: Sequence[str] | None = None) -> int:
    """Plant mutants one after the other; return 1 if one survives all commands, or has no place."""
    cli = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description="Plant wrong changes in a worktree of HEAD, and run the tests of their parts.",
    )
    cli.add_argument("names", nargs="*", metavar="NAME", help="mutants or parts; default: all")
    cli.add_argument("--places", action="store_true", help="only say which have no place")
    cli.add_argument("--near", action="store_true", help="only the nearest files of tests")
    cli.add_argument("--slow", action="store_true", help="also the slow tests, and those on Ray")
    cli.add_argument("--no-tests", action="store_true", help="only the commands of --run")
    cli.add_argument("--seconds", type=float, default=600.0, metavar="S",
                     help="time limit of a command, after which a mutant is undecided")  # fmt: skip
    cli.add_argument("--run", metavar="KIND=COMMAND", action="append", default=[],
                     help="a further command, such as fuzz='make fuzz SEEDS=60'")  # fmt: skip
    args = cli.parse_args(argv)
    mutants = [m for m in read_table() if not args.names or {m.name, m.part} & {*args.names}]
    lost = {m: why for m in mutants if (why := wrong_place(ROOT, m))}
    for mutant, why in lost.items():
        print(f"{mutant.part} {mutant.name}: to be placed again: {why}")
    if args.places:
        print(f"{len(mutants) - len(lost)} of {len(mutants)} mutants have a place")
        return int(bool(lost))
    found: dict[Mutant, dict[str, str]] = {}
    red: dict[str, bool] = {}
    with (
        TemporaryDirectory(prefix="mutants-") as home,
        worktree("HEAD", Path(home, "code")) as root,
    ):
        for mutant in (m for m in mutants if m not in lost):
            began, found[mutant] = time.monotonic(), {}
            commands = commands_for(mutant, root, args)
            with planted(root, mutant):
                for kind, words in commands.items():
                    found[mutant][kind] = outcome_of(words, root, args.seconds)
            test = found[mutant].get("tests", SURVIVED)
            if is_kill(test) and is_red(test, root, red):
                found[mutant]["tests"] = f"{RED}{test}"
            said = ", ".join(f"{kind}: {text}" for kind, text in found[mutant].items())
            seconds = time.monotonic() - began
            print(f"{mutant.part} {mutant.name}: {said} ({seconds:.0f} s)", flush=True)
    print_summary(found)
    return int(bool(lost) or any(not any(map(is_kill, row.values())) for row in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
