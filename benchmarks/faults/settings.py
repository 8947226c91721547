"""Wrong settings, made from the types of all keys and parameters, each through its command.

A setting is refused with one sentence that names its key and exit code 2, or it is accepted and
the experiment really runs: a round of it does. Anything else is wrong: another exit code, no end,
a sentence without the key, or a value that cannot be meant and is taken.
"""

from __future__ import annotations

import contextlib
import io
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, NoneType
from typing import Any, NoReturn, get_args, get_origin
from unittest.mock import patch

import yaml
from pydantic import BaseModel

import fedray.cli.run
import fedray.sweep.command
from benchmarks.faults.tally import Tally
from fedray.config import COMPONENTS, Component, Experiment
from fedray.config.typed import plain_types
from fedray.records import Round
from fedray.registry import parameters_of, registry
from fedray.tracking.__main__ import main as tracking

SECONDS = 120.0
"""How long one setting may take; a refusal takes hundredths, a round of the base a second."""

BASE = """\
extends: fedavg_digits
rounds: 1
local_epochs: 1
batch_size: 32
data: {samples: 240, clients: 4, partition: iid}
model: {feature_dim: 384}
text: {style: handcrafted}
"""


@dataclass(frozen=True)
class Case:
    """One wrong setting.

    Attributes:
        kind: what is wrong with it.
        words: the command line.
        named: what the message has to name, the last part of the key.
        refused: whether it has to be refused; else it may be what somebody means.
        command: which command: run, sweep, report, fedray, tracking.
        file: a YAML file that the words may name as FILE.
    """

    kind: str
    words: tuple[str, ...]
    named: str
    refused: bool = True
    command: str = "run"
    file: str | None = None


def run(count: int, seed: int, folder: Path) -> Tally:
    """Try `count` of all wrong settings, drawn by the seed; all of them when there are fewer."""
    found = [*experiment_cases(), *component_cases(), *word_cases(), *sweep_cases()]
    found += other_commands(folder)
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    tally = Tally()
    (folder / "base.yaml").write_text(BASE)
    for number, case in enumerate(chosen):
        outcome, why = attempt(case, folder, number)
        if outcome == "WRONG":
            tally.add_wrong(case.kind, f"{' '.join(case.words)[:150]}: {why}")
        else:
            tally.add(case.kind, outcome)
    return tally


# --- one setting ---------------------------------------------------------------------------------


class Endless(BaseException):
    """A setting took too long."""


def attempt(case: Case, folder: Path, number: int) -> tuple[str, str]:
    """Run a case's command in this process.

    Returns:
        "refused", "accepted" or "WRONG"; and why.
    """
    said, printed = io.StringIO(), io.StringIO()
    main = COMMANDS[case.command]
    if case.file is not None:
        (folder / f"case{number}.yaml").write_text(case.file, encoding="utf-8")
    words = [word.replace("FILE", str(folder / f"case{number}.yaml")) for word in case.words]
    try:
        with _watchdog(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = main(words, folder, number)
    except Endless:
        return "WRONG", f"no end after {SECONDS:g} s"
    except BaseException as error:
        return "WRONG", f"raised {type(error).__name__}: {error}"[:300]
    return judged(case, code, said.getvalue())


def judged(case: Case, code: int, said: str) -> tuple[str, str]:
    """What an exit code and what was said on stderr mean."""
    if code == 0:
        return ("WRONG", "was taken") if case.refused else ("accepted", "")
    errors = [line for line in said.splitlines() if line.startswith(("error: ", "failed: "))]
    if code != 2 or len(errors) != 1 or not errors[0].startswith("error: "):
        return "WRONG", f"exit code {code}: {said.strip()[:300]}"
    if case.named not in errors[0]:
        return "WRONG", f"'{case.named}' is not in: {errors[0][:300]}"
    return "refused", ""


@contextlib.contextmanager
def _watchdog() -> Iterator[None]:
    def bark(number: int, frame: FrameType | None) -> NoReturn:
        raise Endless

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _one_round(experiment: Experiment, out: Path, rounds: Iterator[Round], *rest: object) -> None:
    """In place of a whole run: its assembly, and its first round."""
    for done in rounds:
        if done.round >= 1:
            break


def _run(words: Sequence[str], folder: Path, number: int) -> int:
    out = folder / f"out{number}"
    named = [] if words and words[0].endswith(".yaml") else [str(folder / "base.yaml")]
    flags = ["--executor", "serial", "--no-track"]
    flags += [] if {"--out", "--resume"} & set(words) else ["--out", str(out)]
    with (
        patch.object(fedray.cli.run, "run", _one_round),
        patch.object(fedray.cli.run, "print_summary", lambda *_: None),
    ):
        return fedray.cli.run.main([*named, *words, *flags])


class Planned(Exception):
    """A sweep's configurations can all be assembled."""


def _sweep(words: Sequence[str], folder: Path, number: int) -> int:
    def stop(*_: Any, **__: Any) -> NoReturn:
        raise Planned

    with patch.object(fedray.sweep.command, "connect_cluster", stop):
        try:
            return fedray.sweep.command.main([*words, "--no-track", "--debug"])
        except Planned:
            return 0


def _fedray(words: Sequence[str], folder: Path, number: int) -> int:
    from fedray.__main__ import main

    return main(list(words))


def _report(words: Sequence[str], folder: Path, number: int) -> int:
    from fedray.report.command import main

    return main(list(words))


COMMANDS: dict[str, Callable[[Sequence[str], Path, int], int]] = {
    "run": _run,
    "sweep": _sweep,
    "fedray": _fedray,
    "report": _report,
    "tracking": lambda words, folder, number: tracking(list(words)),
}


# --- what is wrong with a value ------------------------------------------------------------------

LONG = "x" * 20_000
ANYWHERE = {
    "a list": "[1, 2]",
    "an empty list": "[]",
    "lists in lists": "[" * 500 + "]" * 500,
    "a mapping": "{zzz: 1}",
    "too long a text": LONG,
    "no YAML": "[1, {",
    "a control character": '"a\\0b"',
}
NO_NUMBER = {
    "a switch for a number": "true",
    "a text for a number": "abc",
    "a number in quotes": "'7'",
    "an empty text": "''",
    "not a number": ".nan",
    "infinite": ".inf",
    "minus infinite": "-.inf",
    "a number beyond all floats": "1e300",
    "a number of 30 digits": "1" + "0" * 30,
    "a number of 5,000 digits": "1" + "0" * 5000,
    "a time": "1:30",
    "a date": "2026-11-22",
    "an octal number": "010",
    "yes": "yes",
    "absurdly many": "999999999999999",
}
NO_TEXT = {
    "a number for a text": "3",
    "a switch for a text": "true",
    "a number for a text, not whole": "2.5",
}
NO_SWITCH = {
    "a number for a switch": "1",
    "a text for a switch": "abc",
    "yes": "yes",
    "off": "off",
    "null": "null",
}
MAY_BE_MEANT = {"null": "null", "a mapping that is empty": "{}"}


def wrong_values(key: str, field: Any) -> Iterator[tuple[str, str, bool]]:
    """Kind, value and whether it has to be refused, from a key's type and bounds."""
    kinds = set(plain_types(field.annotation))
    is_optional = NoneType in get_args(field.annotation)
    takes_list = get_origin(field.annotation) in (list, tuple) or "tuple[" in str(field.annotation)
    for kind, value in ANYWHERE.items():
        yield kind, value, not (takes_list and "list" in kind)
    for kind, value in MAY_BE_MEANT.items():
        yield kind, value, kind != "null" or not is_optional
    if bool in kinds:
        yield from ((kind, value, value != "null") for kind, value in NO_SWITCH.items())
    elif {int, float} & kinds:
        yield from ((kind, value, True) for kind, value in _no_numbers(key, kinds).items())
        yield from ((kind, value, True) for kind, value in _out_of_bounds(field))
    else:
        yield from ((kind, value, True) for kind, value in NO_TEXT.items())
        if "Literal" in str(field.annotation):
            yield "another choice", "zzz", True


def _no_numbers(key: str, kinds: set[Any]) -> dict[str, str]:
    wrong = dict(NO_NUMBER)
    if "seed" in key or key.startswith("wire."):
        wrong.pop("absurdly many")
    if float not in kinds:
        wrong["a fraction"] = "2.5"
    return wrong


def _out_of_bounds(field: Any) -> Iterator[tuple[str, str]]:
    for bound in field.metadata:
        for name, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if (limit := getattr(bound, name, None)) is not None:
                yield f"out of bounds ({name})", repr(limit + step * max(1, abs(limit)))


# --- settings of an experiment -------------------------------------------------------------------


def typed_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a typed model with its field, components left out."""
    for name, field in model.model_fields.items():
        key, kind = f"{prefix}{field.alias or name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Component:
            yield from typed_keys(kind, f"{key}.")
        elif kind is not Component:
            yield key, field


def experiment_cases() -> Iterator[Case]:
    """Every key of an experiment with every wrong value of its type."""
    for key, field in typed_keys(Experiment):
        yield from _of_key(key, field, ())
    for section in ("data", "model", "text", "join", "faults", "wire"):
        for value in ("abc", "3", "true", "null", "[1]", "2026-11-22", '"a\\0b"', LONG):
            yield Case("no section", (f"{section}={value}",), section)
    for key in COMPONENTS:
        last = key.rsplit(".", 1)[-1]
        for value in ("3", "true", "null", "[a]", "[]", "{name: 3}", "{name: [a]}", "{name: null}",
                      "''", "../../escape", '"a\\0b"', LONG, "zzz", "{name: zzz}", "{zzz: 1}",
                      "1e300", ".nan", "{name: {name: a}}"):  # fmt: skip
            yield Case("no component", (f"{key}={value}",), last, refused=False)


def component_cases() -> Iterator[Case]:
    """Every parameter of everything that is chosen by name, with every wrong value of its type."""
    for key, kind in COMPONENTS.items():
        for entry in registry(kind).entries():
            chosen = (f"{key}={entry.name}", *_what_it_needs(key, entry))
            params = parameters_of(entry)
            yield Case("no such parameter", (*chosen, f"{key}.zzz=1"), "zzz")
            for name, field in typed_keys(params) if params is not None else ():
                yield from _of_key(f"{key}.{name}", field, chosen)


def _what_it_needs(key: str, entry: Any) -> tuple[str, ...]:
    """What the base lacks for a method: images as large as the CLIP's, held-out images, ..."""
    if entry.name == "vectors":
        return ("text.encoder.path=vectors.txt",)
    if key != "algorithm":
        return ()
    needs = entry.requires
    return (
        *(("data.image_size=32", "data.channels=3") if needs.prompts else ()),
        *(("data.validation_fraction=0.2",) if needs.validation else ()),
    )


def _of_key(key: str, field: Any, chosen: tuple[str, ...]) -> Iterator[Case]:
    last = key.rsplit(".", 1)[-1]
    for kind, value, refused in wrong_values(key, field):
        yield Case(kind, (*chosen, f"{key}={value}"), last, refused)
    yield Case("no value", (*chosen, f"{key}="), last)
    yield Case("keys below a value", (*chosen, f"{key}.zzz=1"), last)
    yield Case("a contradiction", (*chosen, f"{key}=3", f"{key}.zzz=1"), last)
    yield Case("a misspelt key", (*chosen, f"{key[:-1]}{key[-1]}x=1"), f"{last}x")
    if "." in key:
        parent = key.rsplit(".", 1)[0]
        yield Case("a parent that is no section", (f"{parent}=[1]", f"{key}=1"), parent)


def word_cases() -> Iterator[Case]:
    """Words that are no assignment, contradict each other, or name what cannot be named."""
    for word in ("=x", "rounds", ".a=1", "a..b=1", "a.=1", "é b=1", "a b=1", "x\0y=1"):
        yield Case("no assignment", (word,), "is not key=value")
    for key in ("größe", "a.b.c.d", "λ", "x" * 300, ".".join("abcdefgh" * 40)):
        yield Case("an unknown key", (f"{key}=1",), key[:20].split(".")[0])
    for first, second, named in (
        ("data=abc", "data.clients=3", "data"),
        ("data.clients=3", "data=abc", "data"),
        ("data={clients: 3}", "data.clients=4", "data.clients"),
        ("algorithm=fedavg", "algorithm={name: fedprox}", "algorithm"),
        ("algorithm={name: fedprox}", "algorithm=fedavg", "algorithm"),
        ("algorithm={name: fedprox, mu: 1}", "algorithm.mu=2", "algorithm.mu"),
        ("data.partition=iid", "data.partition.name=shards", "data.partition"),
        ("text.encoder=[a]", "text.encoder.path=3", "text.encoder"),
    ):
        yield Case("a contradiction", (first, second), named)
    for name in ("..", ".", "''", ".hidden", "../../escape", "/etc/passwd", "a/b", "a\\b", "-x",
                 "' a'", "x" * 300, '"a\\nb"', '"a\\0b"', "~root", "é" * 60, "C:x"):  # fmt: skip
        yield Case("a name that is no file's", (f"name={name}",), "name")
    for path in ("''", "x" * 300, '"a\\0b"', "3", "[a]", "/dev/null", "/proc/self/mem"):
        for key in ("text.encoder.path", "model.clip.path", "data.root", "data.split",
                    "model.pretrained", "text.descriptions"):  # fmt: skip
            component = {"text.encoder.path": "text.encoder=bert", "model.clip.path":
                         "model.clip=openclip"}.get(key, "seed=1")  # fmt: skip
            algorithm = "algorithm=fedglcl" if key.startswith("text") else "algorithm=promptfl"
            yield Case("no path", (component, algorithm, f"{key}={path}"), key.rsplit(".")[-1],
                       refused=False)  # fmt: skip
    for template in ("{label:999999999999}", "{description!r}", "{0}", "{label.__class__}", "{",
                     "{description} {x}", "}", "{description:{label}}", ""):  # fmt: skip
        words = ("algorithm=fedglcl", "text.style=fine", f"text.template='{template}'")
        yield Case("no template", words, "text.template")
    for flag in ("--out", "--resume"):
        for folder in ("", " ", "x" * 300, "a\0b", "\n"):
            yield Case("no folder", (flag, folder), flag)
    yield Case("no folder", ("--resume", __file__), "--resume")
    yield Case("no executor", ("--executor=abc",), "--executor")
    yield Case("no flag", ("--zzz",), "--zzz")
    for text, named in FILES:
        yield Case("no experiment file", ("FILE",), named, file=text)


FILES = (
    ("[" * 3000 + "]" * 3000, "nested more than"),
    ("a: " + "{a: " * 3000 + "1" + "}" * 3000, "nested more than"),
    ("\n".join(f"key{i}: 1" for i in range(20_000)), "key0"),
    ("\n".join(f"key: {i}" for i in range(20_000)), "stands twice"),
    ("x0: &x0 [1]\n" + "\n".join(f"x{i}: &x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, 60)),
     "values"),
    ("x0: &x0 {a: 1}\n" + "\n".join(f"x{i}: &x{i} {{<<: [*x{i - 1}, *x{i - 1}]}}"
                                    for i in range(1, 60)), "values"),
    ("a: &a [*a]", "alias"),
    ("1: 2", "1"),
    ("? [a]\n: 2", "key"),
    ("rounds: !!python/object:os.system x", "rounds"),
    ("a" * 2_000_000, "bytes"),
    ("extends: [a]", "extends"),
    ("extends: 3", "extends"),
    ("extends: ../../../etc/passwd", "passwd"),
    ("data: abc\nextends: fedavg_digits", "data"),
    ("algorithm: {name: fedavg, name: fedprox}", "name"),
    ("rounds: 2\n---\nrounds: 3", "is not valid YAML"),
    ("\ud7ff\ufffe", "is not valid YAML"),
)  # fmt: skip
"""Files that are no experiment, and what the message has to name."""


# --- sweeps and the other commands ---------------------------------------------------------------

PLAIN_SWEEP: dict[str, Any] = {
    "answers": "nothing",
    "space": {"lr": {"grid": [0.1, 0.2]}},
    "scales": {"laptop": {"experiment": "fedavg_digits", "set": {"data.samples": 240}}},
}


def sweep_cases() -> Iterator[Case]:
    """Sweep files with wrong spaces, keys and sizes, and wrong words for a right one."""

    def case(kind: str, named: str, *words: str, **changes: Any) -> Case:
        tree = {**PLAIN_SWEEP, **changes}
        return Case(kind, ("FILE", *words), named, True, "sweep", yaml.safe_dump(tree))

    for key, values in {
        "space": ("abc", 3, [1], {}, None, {"lr": 3}, {"lr": []}, {"lr": {}}, {"lr": None}),
        "seeds": ([], [True], [-1], [1, 1], ["a"], [2**70], 3, [1.5], "abc"),
        "search": ("zzz", 3, None), "metric": (3, None, [1]), "at": ("zzz", 1),
        "mode": ("up", True),
        "num_samples": (0, -1, 10**9, "abc", True, 2.5), "asha": ([1], {"zzz": 1}, 3),
        "scales": ({}, {"zzz": {}}, {"laptop": 3}, {"laptop": {}}, [1], {"laptop": {"zzz": 1}}),
        "search_seed": (-1, True, "a", 10**30), "zzz": (1,), "answers": (3, None),
    }.items():  # fmt: skip
        for value in values:
            yield case("a wrong key of a sweep", key, **{key: value})
    for value in ({"grid": 3}, {"grid": []}, {"grid": [1, 1]}, {"grid": [1, 1.0]}, {"zzz": [1]},
                  {"uniform": [1, 2]}, {"uniform": [2, 1]}, {"uniform": [0, float("inf")]},
                  {"loguniform": [0, 1]}, {"randint": [1, 2.5]}, {"grid": ["abc"]},
                  {"grid": [-1.0]}, {"grid": [float("nan")]}, {"grid": [[1]]}, {"grid": [{"a": 1}]},
                  {"grid": [True]}, {"grid": [1], "choice": [1]}):  # fmt: skip
        yield case("a wrong space", "lr", space={"lr": value})
    for key in ("zzz", "", ".", "a..b", "x" * 300, "seed", "data", "lr, lr"):
        yield case("a wrong key of a space", key[:50], space={key: {"grid": [1, 2]}})
    yield case("a wrong key of a space", "zzz", space={"data.zzz": {"grid": [1, 2]}})
    every = {f"algorithm.key{i}": {"grid": list(range(10))} for i in range(9)}
    yield case("a grid too large", "1000000000", space=every)
    yield case("a grid too large", "160000", space={
        key: {"grid": list(range(1, 401))} for key in ("lr", "batch_size")})  # fmt: skip
    laptop = PLAIN_SWEEP["scales"]["laptop"]
    for bad, named in (
        ({"data": "abc", "data.clients": 3}, "data"),
        ({"zzz": 1}, "zzz"),
        ({"rounds": "abc"}, "rounds"),
        ({"": 1}, ""),
        ({"a..b": 1}, "a"),
    ):
        yield case("a wrong set", named, scales={"laptop": {**laptop, "set": bad}})
    for name in ("", "zzz", "../x", "x" * 300, "a\0b"):
        scale = {"laptop": {**laptop, "experiment": name}}
        yield case("a wrong experiment of a sweep", "experiment", scales=scale)
    for words, named in ((("--num-samples", "-1"), "--num-samples"), (("--out", ""), "--out"),
                         (("--num-samples", "1e9"), "--num-samples"), (("lr=1",), "lr"),
                         (("--num-samples", "9" * 30), "--num-samples"),
                         (("--scale", "x"), "--scale"),
                         (("seed=-1",), "seed"), (("seed=true",), "seed"), (("seed=[1]",), "seed"),
                         (("data=abc", "data.clients=3"), "data"), (("rounds=abc",), "rounds"),
                         (("zzz=1",), "zzz"), (("=1",), "=1"), (("--zzz",), "--zzz"),
                         (("--resume",), "--resume")):  # fmt: skip
        yield case("wrong words for a sweep", named, *words)
    for text, named in (*FILES[:2], *FILES[3:9]):
        yield Case("no sweep file", ("FILE",), named, True, "sweep", text)
    for name in ("zzz", "", "x" * 300, "a\0b", "../..", "."):
        yield Case("no sweep", (name,), "", True, "sweep")


def other_commands(folder: Path) -> list[Case]:
    """Wrong words for listings, pages, reports and uploads."""
    empty = folder / "empty"
    empty.mkdir()
    (folder / "plain").write_text("nothing")
    folders = ("", "\0", "x" * 300, str(empty), str(folder / "none"), str(folder / "plain"))
    return [
        Case("wrong words", words, "", True, command)
        for command, every in {
            "fedray": [(), ("ls",), ("ls", "zzz"), ("ls", ""), ("zzz",), ("docs", "--root", ""),
                       ("docs", "--root", str(empty)), ("docs", "--zzz"), ("ls", "x" * 5000)],
            "report": [(), ("--metric",), ("--at", "zzz", str(empty)), (str(empty), "--out", ""),
                       ("--zzz",), (str(empty), "--metric", ""),
                       (str(empty), "--base", "a\0b"), *((each,) for each in folders)],
            "tracking": [(), ("upload",), ("zzz",), ("upload", str(empty), "--experiment", ""),
                         ("upload", str(empty), "--uri", " "),
                         *(("upload", each) for each in folders)],
        }.items()
        for words in every
    ]  # fmt: skip
