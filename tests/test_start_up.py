"""What fedray does before the first gradient of a sweep: its own functions, counted.

    python tests/test_start_up.py     prints them, part by part and file by file

The parts are the plan (what `--plan` runs), the inputs (what the driver checks before the first
run, without the connection to Ray), and the trial (from Ray Tune's call to the first `backward`).
A function counts once per part, one of the inputs only if the plan has not run it; what a module
runs while it is imported does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import pytest

import fedray

PACKAGE = f"{Path(fedray.__file__).parent}/"
STUDY = """\
answers: does the rate matter?
space:
  lr: {grid: [0.02, 0.1]}
scales:
  laptop:
    experiment: local_digits
    set: {rounds: 1}
"""
MOST = {"plan": (260, 50), "inputs": (170, 42), "trial": (430, 78)}
"""The most functions and files of each part."""


class Reached(BaseException):
    """Ends a part where the next one begins."""


class Counter:
    """Notes fedray's functions that are called in a `with` block."""

    def __init__(self) -> None:
        self.codes: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code.co_name == "backward" and "/torch/" in code.co_filename:
            raise Reached
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if code.co_filename.startswith(PACKAGE) and is_function and not is_imported(frame):
            self.codes[code] = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def by_file(self) -> dict[str, list[str]]:
        files = defaultdict[str, list[str]](list)
        for code in self.codes:
            files[code.co_filename.removeprefix(PACKAGE)].append(code.co_qualname)
        return dict(sorted(files.items()))


def is_imported(frame: FrameType | None) -> bool:
    """Return True if a module of fedray that is being imported called the function."""
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
            return True
    return False


def count(folder: Path) -> dict[str, Counter]:
    """Run the parts one after the other in this process; return their functions."""
    from fedray.runtime.cache import shared
    from fedray.studies import ready, tune
    from fedray.studies.study import Study
    from fedray.sweep import main

    counters = {part: Counter() for part in MOST}
    file = folder / "study.yaml"
    file.write_text(STUDY)
    trials = []

    def take_the_first(study: Study, *_: Any) -> None:
        run = study.ask()
        assert run is not None
        trials.append((tune.task_of(study), tune.config_of(run, study.plan)))
        raise Reached

    with counters["plan"].watch():
        assert main([str(file), "--plan"]) == 0
    with (
        mock.patch.object(ready, "_connect", return_value=1),
        mock.patch.object(tune, "run_trials", take_the_first),
        counters["inputs"].watch(),
        suppress(Reached),
    ):
        main([str(file), "--no-track"])
    for code in counters["plan"].codes:
        counters["inputs"].codes.pop(code, None)
    shared.clear()  # a trial has a process of its own
    with (
        counters["trial"].watch(),
        suppress(Reached),
    ):
        [(task, config)] = trials
        tune.trainable_of(task)(config).step()
    return counters


def report(counters: dict[str, Counter]) -> Iterator[str]:
    for part, counter in counters.items():
        yield f"{part}: {len(counter.codes)} functions in {len(counter.by_file())} files"
        for file, names in counter.by_file().items():
            yield f"  {file}: {', '.join(names)}"
    codes = {code for counter in counters.values() for code in counter.codes}
    files = {code.co_filename for code in codes}
    yield f"in all: {len(codes)} functions in {len(files)} files"


@pytest.mark.slow
def test_the_start_of_a_sweep_passes_few_functions(tmp_path):
    env = {**os.environ, "FEDRAY_RESULTS": str(tmp_path), "FEDRAY_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, __file__], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout)
    found = {}
    for line in done.stdout.splitlines():
        part, _, numbers = line.partition(": ")
        if part in MOST:
            functions, _, _, files, _ = numbers.split()
            found[part] = int(functions), int(files)
    assert found.keys() == MOST.keys()
    for part, most in MOST.items():
        assert found[part][0] <= most[0], part
        assert found[part][1] <= most[1], part


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("FEDRAY_RESULTS", home)
        print("\n".join(report(count(Path(home)))))
