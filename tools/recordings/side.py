"""Run the cases of one part with the `fedray` on Python's path, and write their values as lines.

Called as a file, `python side.py FOLDER PART CASE ...`, by `python -m tools.recordings`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cases
import names
import readers

import fedray

try:
    from fedray.base.errors import UserError
except ImportError:  # a commit before the room `base`
    from fedray.errors import UserError

FEDRAY = (sys.executable, "-m", "fedray")
SECONDS = 300
"""Time limit of a command."""


def experiment(base: Any, settings: Mapping[str, Any]) -> fedray.Experiment:
    """Return an experiment, with keys and entries under the names that this side knows.

    Raises:
        UserError: if it is refused under all names; of the first refusal.
    """
    refusals = []
    for spelling in names.spellings(settings):
        try:
            return fedray.Experiment(base, spelling)
        except UserError as error:
            refusals.append(error)
    raise refusals[0]


def run_here(made: fedray.Experiment, folder: Path, which: tuple[str, ...]) -> readers.Values:
    """Run an experiment in this process and return its values."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made.train(folder, executor="serial", track=False)
    return read_run(folder, which)


def read_run(folder: Path, which: tuple[str, ...]) -> readers.Values:
    """Return the values of a finished run, and remove its folder."""
    values = {**readers.read_rounds(folder), **readers.read_choice(folder)}
    for models in which:
        values |= readers.read_models(folder, models)
    shutil.rmtree(folder)
    return values


def method(case: str, folder: Path) -> readers.Values:
    """Run a method on a network; the case is `METHOD NETWORK`, and `stacked` after them."""
    name, network, *stacked = case.split()
    settings = dict(cases.method_settings(name, network))
    settings |= {"stacked": cases.STACKED} if stacked else {}
    known = experiment({}, settings).config["algorithm"]
    cheap = cases.CHEAP_STACKED if stacked else cases.CHEAP
    settings |= {f"algorithm.{key}": value for key, value in cheap.items() if key in known}
    return run_here(experiment({}, settings), folder, ("last",))


def shipped(case: str, folder: Path) -> readers.Values:
    """Run a shipped experiment at two rounds."""
    made = experiment(case, {**cases.TINY, **cases.EXPERIMENTS[case]})
    return run_here(made, folder, ("best", "last"))


def on_ray(case: str, folder: Path) -> readers.Values:
    """Run a shipped experiment on Ray, kill it after its first round, and resume it."""
    made = experiment(case, {**cases.TINY, **cases.EXPERIMENTS[case], "rounds": 4})
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(made.config), encoding="utf-8")  # JSON is YAML
    run = [*FEDRAY, "run", str(file), "--no-track"]
    first = subprocess.Popen(
        [*run, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    began = time.monotonic()
    while readers.rounds_done(folder) < 2 and first.poll() is None:
        time.sleep(0.01)
        if time.monotonic() - began > SECONDS:
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    command("run", "--resume", str(folder), "--no-track")
    return read_run(folder, ("best", "last"))


def study(case: str, folder: Path) -> readers.Values:
    """Run a sweep or a table; of a table also its report, an analysis and `fedray verify`."""
    kind, name = case.split()
    folder.mkdir()
    (folder / "tiny.yaml").write_text(cases.BASE, encoding="utf-8")
    (folder / f"{name}.yaml").write_text(cases.STUDIES[case], encoding="utf-8")
    out = folder / "out"
    command(kind, f"./{name}.yaml", "--no-track", "--out", str(out), cwd=folder)
    if kind == "sweep":
        return readers.read_sweep(out)
    values = readers.read_table(out)
    command("report", str(out), "--out", str(folder / "report"), cwd=folder)
    values |= prefixed("report", readers.read_csv(folder / "report" / "table.csv", keys=4))
    command("verify", str(out), "--sample", "2", cwd=folder)  # raises if the numbers differ
    for number in (1, 2):
        run = ("run", "tiny.yaml", f"seed={number}", "--executor", "serial", "--no-track")
        command(*run, "--out", str(folder / f"run{number}"), cwd=folder)
    runs = (str(folder / "run1"), str(folder / "run2"))
    command("analyse", "target", *runs, "--target", "0.05", "--out", str(folder / "target"))
    for file in sorted((folder / "target").glob("*.csv")):
        values |= prefixed("target", readers.read_csv(file))
    return values


def prefixed(place: str, values: readers.Values) -> readers.Values:
    """Return values below a place."""
    return {f"{place}: {name}": value for name, value in values.items()}


def command(*words: str, cwd: Path | None = None) -> None:
    """Run a command of fedray.

    Raises:
        RuntimeError: if it fails; with the end of what it printed.
    """
    done = subprocess.run(
        [*FEDRAY, *words], cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[-300:]
        raise RuntimeError(f"fedray {words[0]} ends with {done.returncode}: {said}")


PARTS: Mapping[str, Callable[[str, Path], readers.Values]] = {
    "methods": method,
    "experiments": shipped,
    "ray": on_ray,
    "studies": study,
}


def main(folder: Path, part: str, wanted: list[str]) -> None:
    """Write a line for each case: its values, or why there are none."""
    with (folder / f"{part}.jsonl").open("w", encoding="utf-8") as file:
        for number, case in enumerate(wanted):
            try:
                line: dict[str, Any] = {
                    "case": case,
                    "values": PARTS[part](case, folder / f"{part}{number}"),
                }
            except Exception as error:
                words = " ".join(f"{type(error).__name__}: {error}".split())
                line = {"case": case, "error": words[:400]}
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
