"""`python -m tools.recordings REF [PART ...]`; see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.recordings import cases
from tools.recordings.compare import differences

ROOT = Path(__file__).parents[2]
SIDE = Path(__file__).with_name("side.py")
SIDES = ("old", "new")
STACKED = "stacked"
"""The last word of a case with stacked clients, which some methods refuse."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

PARTS: Mapping[str, Sequence[str]] = {
    "methods": [
        f"{method} {network}{stacked}"
        for method in cases.METHODS
        for network in (("clip",) if method in cases.PROMPTS else cases.NETWORKS)
        for stacked in ("", f" {STACKED}")
    ],
    "experiments": list(cases.EXPERIMENTS),
    "ray": cases.ON_RAY,
    "studies": list(cases.STUDIES),
}


@contextmanager
def worktree(ref: str, folder: Path) -> Iterator[Path]:
    """Check out a commit in a folder, and remove it at the end."""
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "-q", "--detach", str(folder), ref], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def start(code: Path, folder: Path, part: str, wanted: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start one side's process for a part."""
    for root in cases.ROOTS:
        (folder / "data" / root).mkdir(parents=True, exist_ok=True)
    homes = {f"FEDRAY_{name.upper()}": str(folder / name) for name in ("results", "cache", "data")}
    environment = {**os.environ, **QUIET, **homes, "PYTHONPATH": str(code)}
    environment.pop("RAY_ADDRESS", None)
    words = [sys.executable, str(SIDE), str(folder), part, *wanted]
    with (folder / f"{part}.log").open("wb") as log:
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)


def lines_of(folder: Path, part: str) -> dict[str, dict[str, Any]]:
    """Return the lines that a side has written, by case."""
    text = (folder / f"{part}.jsonl").read_text(encoding="utf-8")
    return {line["case"]: line for line in map(json.loads, text.splitlines())}


def compared(
    case: str, old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float
) -> list[str]:
    """Return the differences of a case; an error on both sides compares nothing, which is one."""
    errors = [line["error"] for line in (old, new) if "error" in line]
    if len(errors) == len(SIDES):
        is_refused = all(error.startswith("UserError") for error in errors)
        if case.endswith(STACKED) and is_refused:
            return []  # the method does not stack
        return [f"fails on both sides: {errors[1]}"]
    for side, line in zip(SIDES, (old, new), strict=True):
        if "error" in line:
            return [f"fails on the {side} side: {line['error']}"]
    return list(differences(old["values"], new["values"], tolerance))


def compare_part(
    part: str,
    wanted: Sequence[str],
    folders: Mapping[str, Path],
    codes: Mapping[str, Path],
    tolerance: float,
) -> tuple[int, int]:
    """Run both sides of a part; print the differences; return how many, and how many values."""
    running = [start(codes[side], folders[side], part, wanted) for side in SIDES]
    try:
        for side, process in zip(SIDES, running, strict=True):
            if process.wait():
                log = (folders[side] / f"{part}.log").read_text(errors="replace")
                raise SystemExit(
                    f"the {side} side of {part} ends with {process.returncode}:\n{log}"
                )
    finally:
        for process in running:
            process.kill()
    found = [lines_of(folders[side], part) for side in SIDES]
    count = values = 0
    for case in wanted:
        allowed = tolerance if case.endswith(STACKED) else 0.0
        old, new = found[0][case], found[1][case]
        values += len(new.get("values", ()))
        for difference in compared(case, old, new, allowed):
            print(f"{part}: {case}: {difference}", flush=True)
            count += 1
    return count, values


def main(argv: Sequence[str] | None = None) -> int:
    """Compare a commit with this checkout; return 1 if a value differs."""
    cli = argparse.ArgumentParser(
        prog="python -m tools.recordings",
        description="Compare metrics, bytes and weights of a commit and of this checkout.",
    )
    cli.add_argument("ref", metavar="REF", help="the older commit")
    cli.add_argument("parts", nargs="*", metavar="PART",
                     help=f"of {', '.join(PARTS)}; default: all")  # fmt: skip
    cli.add_argument("--only", metavar="TEXT", default="", help="only cases that contain a text")
    cli.add_argument("--stacked-tolerance", type=float, default=0.0, metavar="X",
                     help="of stacked clients, for example 1e-5; default: bit for bit")  # fmt: skip
    args = cli.parse_args(argv)
    if unknown := sorted(set(args.parts) - set(PARTS)):
        cli.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    began, count, values, number = time.monotonic(), 0, 0, 0
    with TemporaryDirectory(prefix="recordings-") as home:
        folders = {side: Path(home, side) for side in SIDES}
        for folder in folders.values():
            folder.mkdir()
        with worktree(args.ref, Path(home, "code")) as code:
            codes = {"old": code, "new": ROOT}
            for part in args.parts or PARTS:
                wanted = [case for case in PARTS[part] if args.only in case]
                wrong, read = compare_part(part, wanted, folders, codes, args.stacked_tolerance)
                count, values, number = count + wrong, values + read, number + len(wanted)
    seconds = time.monotonic() - began
    print(f"{count} differences in {values} values of {number} cases, {seconds:.0f} s")
    return int(count > 0)


if __name__ == "__main__":
    raise SystemExit(main())
