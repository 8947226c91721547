"""Read damaged, cut, edited, linked and exchanged files of runs and studies by every command.

A finished and an interrupted run of two methods, and a finished sweep, are copied to the results
folder; one entry of the copy is damaged. Every command must then give the undisturbed answer, or
exit with 2 and one sentence, after which the copy is as it was. None may hang, write outside of the
results, or show or publish a private file.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.harness import SERIAL, Tally, Victim, difference, prepare, run_undisturbed
from benchmarks.faults.sweeps import write_sweep

LIMIT_SECONDS = 60.0
PRIVATE = "a private line"
METHODS = ("scaffold", "fedtsp")
FINISHED, INTERRUPTED, OTHER = "finished {}", "interrupted {}", "another {}"
RUN, STUDY = Path("runs", "it"), Path("small_sweep", "1")
ENTRY = {form.format(name): RUN for form in (FINISHED, INTERRUPTED) for name in METHODS}
ENTRY["study"] = STUDY
SWEEP_WORDS = ("sweep", "small_sweep.yaml", "--resume", "--out", "{it}", "--no-track")
READERS = {
    "report": ("report", "{it}"),
    "upload": ("upload", "{it}", "--uri", "sqlite:///{home}/out/mlflow.db"),
    "diff": ("diff", "{it}", "{whole}"),
    "verify": ("verify", "{it}"),
    "predict": ("predict", "{it}", "{home}/image.png", "--client", "0"),
    "show": ("show", "{it}/config.yaml"),
    "cost": ("cost", "{it}/config.yaml"),
    "target": ("analyse", "target", "{it}", "--target", "0.05"),
    "resume": ("run", "--resume", "{it}", *SERIAL),
}
OF_STUDY = {
    **{name: READERS[name] for name in ("report", "upload")},
    "resume": SWEEP_WORDS,
}
PAGES = {"trials.csv", "best.yaml", "sweep.png", "sweep.yaml"}
"""Pages of a study and its copied file; an upload counts those that are there."""
NOT_CHECKED = {".lock", ".trial.lock", "error.txt", "tracking.json", *PAGES}
"""Files without a checksum, on which no number depends."""
Kind = Callable[[Path, Path], object]


def patch(draw: random.Random, old: bytes, pattern: bytes, bits: list[int]) -> bytes:
    """Flip bits of one byte that matches a pattern, or of the last byte."""
    places = [match.start() for match in re.finditer(pattern, old, re.DOTALL)] or [len(old) - 1]
    place = draw.choice(places)
    return old[:place] + bytes([old[place] ^ draw.choice(bits)]) + old[place + 1 :]


OTHERS = (b"{}", b"[]", b"null", b"\xff\x00", b"3", b'{"checksum": 1}', b"[" * 100_000)
EDITS: dict[str, Callable[[random.Random, bytes], bytes | None]] = {
    "bit flipped": lambda draw, old: patch(draw, old, b".", [1 << bit for bit in range(8)]),
    "digit changed": lambda draw, old: patch(draw, old, b"[0-7]", [*range(1, 8)]),
    "cut": lambda draw, old: old[: draw.choice([0, draw.randrange(len(old)), len(old) - 1])],
    "bytes appended": lambda draw, old: old + draw.choice([draw.randbytes(9), old[-9:], old]),
    "replaced": lambda draw, old: draw.choice([*OTHERS, draw.randbytes(200)]),
    "removed": lambda draw, old: None,
}


def bind(path: Path, _: Path) -> None:
    """Put a socket at a path."""
    here = Path.cwd()
    os.chdir(path.parent)  # the address may have 107 bytes
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


KINDS: dict[str, Kind] = {
    "linked": lambda path, private: path.symlink_to(private),
    "linked to nothing": lambda path, private: path.symlink_to(path.parent / "nothing"),
    "linked to zeros": lambda path, private: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, private: os.mkfifo(path),
    "a socket": bind,
    "a folder": lambda path, private: path.mkdir(),
}


def make_templates(folder: Path, experiments: dict[str, Path]) -> None:
    """Write the results of finished and interrupted runs, and of a sweep to resume."""
    import torch
    from PIL import Image

    from fedray.cli.study import request_of, sweep
    from fedray.runtime.resolve import resolve
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session
    from fedray.studies.flow import begin_or_resume, hold, run_cells
    from fedray.studies.tune import config_of, reports

    Image.new("L", (8, 8)).save(folder / "image.png")
    for method, (seed, form) in itertools.product(METHODS, enumerate((FINISHED, OTHER))):
        out = folder / "templates" / form.format(method) / RUN
        chosen = resolve(str(experiments[method]), [f"seed={seed}"])
        session = Session(chosen, out, lambda parts: SerialExecutor(parts, torch.device("cpu")))
        for done in session.rounds():
            if done.round == 2 and not seed:
                session.settle()
                shutil.copytree(out, folder / "templates" / INTERRUPTED.format(method) / RUN)
    os.environ["FEDRAY_RESULTS"] = str(folder / "results")
    file = write_sweep(folder, experiments[METHODS[0]], {"workers": 1, "rounds": 2})
    words = [str(file), "--out", str(folder / "results" / STUDY)]
    study = begin_or_resume(request_of("sweep", **sweep.make_context("sweep", words).params))
    with hold(study.home):
        while (trial := study.ask()) is not None:
            trial.last_round = [*reports(config_of(trial, study.plan), study.plan.at)][-1]["round"]
            study.tell(trial, "finished")
        run_cells(study, 0, track=False)
        study.status = "running"  # as after a kill, so that it can be resumed
        study.write()
    (folder / "results").rename(folder / "templates" / "study")


def call(folder: Path, subject: str, reader: str) -> tuple[str, str]:
    """Call a command in the results; return its output without durations, and its defect."""
    words = (OF_STUDY if subject == "study" else READERS)[reader]
    whole = folder / "templates" / FINISHED.format(method_of(subject)) / RUN
    names = {"it": folder / "results" / ENTRY[subject], "home": folder, "whole": whole}

    def work() -> int:
        from fedray.cli.main import main

        os.chdir(folder)
        os.environ["FEDRAY_RESULTS"] = str(folder / "results")
        return main([word.format(**names) for word in words])

    victim = Victim(work, folder / "call.log")
    if victim.wait(LIMIT_SECONDS) is None:
        victim.kill()
        return "", "HANG"
    end, text = victim.end(), (folder / "call.log").read_text(errors="replace")
    if end.code == 1 and reader == "verify":
        return text, "verify: another number"
    text = re.sub(r"\b[\d.:]+ ?(s|ms|min|h|GiB|MB)\b|\d{8}-\d{6}\S*", "*", text)
    failed = end.errors if end.code == 1 else ""
    return (text if end.code == 0 else "refused"), end.fault or failed


def method_of(subject: str) -> str:
    """Return the method of a template."""
    return METHODS[0] if subject == "study" else subject.split()[-1]


def judge(folder: Path, subject: str, reader: str, name: str, undisturbed: str) -> tuple[str, str]:
    """Return the outcome and the defect of a command on a damaged copy."""
    before = contents(folder / "results")
    text, wrong = call(folder, subject, reader)
    published = [path for path in folder.glob("out/**/*") if path.is_file()]
    outside = (folder / "private").read_text() != PRIVATE
    if outside or any(PRIVATE.encode() in path.read_bytes() for path in published):
        return "", f"{reader}: a private file was changed or published"
    if text == "refused" and contents(folder / "results") != before:
        wrong = wrong or "refused, but the folder has changed"
    if wrong or text == "refused":
        return "refused", wrong and f"{reader}: {wrong}"
    if reader == "resume" and subject != "study":
        whole = folder / "templates" / FINISHED.format(method_of(subject)) / RUN
        return "same", difference(folder / "results" / RUN, whole)
    differs = PRIVATE in text or (text != undisturbed and Path(name).name not in NOT_CHECKED)
    return "same", f"{reader}: another answer: {text[-400:]}" if differs else ""


def fresh(folder: Path, subject: str) -> None:
    """Copy the template of a subject to the results, and an empty tracking database."""
    for name in ("results", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "templates" / subject, folder / "results")
    shutil.copytree(folder / "database", folder / "out")
    (folder / "private").write_text(PRIVATE)


def do_damage(draw: random.Random, folder: Path, subject: str, name: str, damage: str) -> bool:
    """Damage an entry of the copy; return False if nothing changes."""
    path = folder / "results" / name
    old, new = path.read_bytes(), None
    if damage in EDITS:
        new = EDITS[damage](draw, old) if old else b"{}"
    elif damage == "exchanged":
        form = draw.choice([OTHER, INTERRUPTED])
        others = contents(folder / "templates" / form.format(method_of(subject)))
        alike = [text for other, text in others.items() if kind_of(other) == kind_of(name)]
        new = draw.choice(alike or [b""])
    path.unlink()
    if damage in KINDS:
        KINDS[damage](path, folder / "private")
    elif new is not None:
        path.write_bytes(new)
    return new != old


def run(count: int, seed: int, folder: Path) -> Tally:
    """Read `count` damaged folders; return the outcomes by damage and command."""
    from fedray.tracking.store import client_of

    experiments = prepare(folder, "fedray.cli.main", "fedray.studies.tune", "mlflow")
    (folder / "database").mkdir()

    def begin() -> int:
        make_templates(folder, experiments)
        client_of(f"sqlite:///{folder}/database/mlflow.db").search_experiments()
        return 0

    run_undisturbed(begin, folder / "begin.log")
    tally, draw, answers = Tally(), random.Random(seed), dict[tuple[str, str], str]()
    files = [(subject, name) for subject in ENTRY for name in names_of(folder, subject)]
    cases = [*itertools.product(files, (*EDITS, *KINDS, "exchanged"))]
    while tally.count < count:
        (subject, name), damage = draw.choice(cases)
        reader = draw.choice([*(OF_STUDY if subject == "study" else READERS)])
        if (subject, reader) not in answers:
            fresh(folder, subject)
            answers[subject, reader], wrong = call(folder, subject, reader)
            if wrong or answers[subject, reader] == "refused":
                raise RuntimeError(f"{subject}, {reader} does not work undisturbed: {wrong}")
        fresh(folder, subject)
        if do_damage(draw, folder, subject, name, damage):
            outcome, wrong = judge(folder, subject, reader, name, answers[subject, reader])
            tally.add([f"{subject}, {damage}"], outcome, wrong and f"{name}: {wrong}")
    return tally


def kind_of(name: str) -> str:
    """Return a path with every number or hash replaced by a star."""
    return re.sub(r"\w*\d\w*", "*", name)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the regular files of a folder by path, without pictures and locks."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    kept = [path for path in paths if path.suffix != ".png" and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def names_of(folder: Path, subject: str) -> list[str]:
    """Return one file of each kind in a template, with pictures."""
    home = folder / "templates" / subject
    paths = [path.relative_to(home).as_posix() for path in sorted(home.rglob("*"))
             if path.is_file() and path.name != ".lock"]  # fmt: skip
    return [*{kind_of(name): name for name in paths}.values()]
