"""`python -m tools.originals --checkout DIR [METHOD ...] [--write]`; see the package."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from tools.originals.federation import (
    PARTICIPATION,
    Method,
    greatest_difference,
    is_checkout_of,
    moved,
    run_fedray,
)
from tools.originals.prompts import AUTHORS, Authors
from tools.originals.records import FOLDER, record, write

REPOSITORIES = ("pfllib", "htfllib", "fedmgp", "feddf", "pfedmma", "maple", "clip_lora")
"""The modules of this package that drive a repository."""
HEAD = """\
Greatest difference of weights after rounds 0 to 3, in brackets the noise floor (the original
against itself with weights moved by 1e-7); of accuracies in points; movement of weights."""


def repository_of(checkout: Path) -> ModuleType | Authors:
    """Return the module that drives a checkout.

    Raises:
        SystemExit: if there is none.
    """
    modules = [*(import_module(f"tools.originals.{name}") for name in REPOSITORIES), *AUTHORS]
    for module in modules:
        if is_checkout_of(checkout, module.MARKS):
            return module
    known = ", ".join(module.REPOSITORY for module in modules)
    raise SystemExit(f"{checkout} is no checkout of {known}")


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def compare(name: str, method: Method, setting: str) -> tuple[list[dict], list[float], list[float]]:
    """Run both; return the original's record, and per round the difference and the noise floor."""
    ours = run_fedray(name, [*method.values, *method.switches], setting)
    theirs = method.run(ours, ours.initial())
    shifted = method.run(ours, moved(ours.initial()))
    differences = [greatest_difference(a, b) for a, b in zip(ours.states, theirs, strict=True)]
    floor = [greatest_difference(a, b) for a, b in zip(theirs, shifted, strict=True)]
    movement = greatest_difference(ours.states[0], ours.states[-1])
    off = np.max(
        [
            abs(a - b)
            for mine, other in zip(ours.states[1:], theirs[1:], strict=True)
            for a, b in zip(mine.accuracies, other.accuracies, strict=True)
        ]
    )
    print(
        f"{name:<12} {setting:<5}",
        *(f"{mine:.1e} ({noise:.1e})" for mine, noise in zip(differences, floor, strict=True)),
        f"{100 * off:.1f}",
        f"{movement:.2f}",
        sep="  ",
        flush=True,
    )
    return record(theirs), differences, floor


def main(argv: Sequence[str] | None = None) -> int:
    """Compare methods with their originals; return 1 if one differs by more than 1e-5."""
    cli = argparse.ArgumentParser(
        prog="python -m tools.originals",
        description="Compare fedray's methods with the original code of their papers.",
    )
    cli.add_argument("methods", nargs="*", metavar="METHOD", help="default: all of the repository")
    cli.add_argument("--checkout", type=Path, required=True, metavar="DIR",
                     help="of PFLlib, HtFLlib, FedDF or authors of prompt methods")  # fmt: skip
    cli.add_argument("--write", action="store_true",
                     help=f"write the originals' numbers to {FOLDER.name}/")  # fmt: skip
    args = cli.parse_args(argv)
    module = repository_of(args.checkout)
    if unknown := sorted(set(args.methods) - set(module.METHODS)):
        known = ", ".join(module.METHODS)
        cli.error(f"{module.REPOSITORY} is not compared for {unknown[0]}, only for {known}")
    module.prepare(args.checkout)
    print(HEAD)
    started, worst = time.perf_counter(), 0.0
    for name in args.methods or module.METHODS:
        method = module.METHODS[name]
        found = {setting: compare(name, method, setting) for setting in PARTICIPATION}
        worst = np.max([worst, *(np.max(differences) for _, differences, _ in found.values())])
        if args.write:
            write(name, module.REPOSITORY, commit_of(args.checkout), method, found)
    print(f"{time.perf_counter() - started:.0f} s")
    return int(not worst <= 1e-5)


if __name__ == "__main__":
    raise SystemExit(main())
