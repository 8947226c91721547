"""Draw experiments and look for faults: `make fuzz [SEEDS=100] [FIRST=0]`.

Prints counts by oracle and method. A fault is shrunk, written to tests/fuzz/cases, and printed with
the command that runs it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exc
from typing import Any

import oracles
import reference_loops as reference
import shrinking
from oracles import DENSE, ORACLES, SCOPE, Diverged, Played, play

from fedray.base.errors import FedrayError, UserError, one_line
from fedray.laws.draws import Drawn, draw
from fedray.runtime.assembly import Assembly
from fedray.storage.run_folder import RunFolder

FIXED = (
    0, 13, 23, 28, 29, 41, 51, 57, 64, 83, 117, 118, 129, 141, 156, 170, 180, 183, 187,
    212, 232, 240, 253, 257, 259, 261, 263, 281, 287, 300, 320, 343, 344, 347, 374, 377,
    389, 418, 423, 428, 452, 469, 478, 507, 518, 521, 548, 577, 594, 598, 614, 633, 634,
    639, 643, 683, 684, 688, 689, 692,
)  # fmt: skip
"""Seeds of the tests: among the first 700, those with most methods and pairs of keys.

A pair counts twice where the reference looks, too. A change of the schema changes what a seed
draws; `--pick` then prints others.
"""
FIRST = 700
"""Seeds among which those of the tests are picked."""
LATE = ("cannot be stacked", "Expected more than 1 value per channel")
"""What PyTorch says of a network that it cannot batch, or of batches that a method makes."""
PROCESSES = 2
EVERY = 200
"""Seeds between two that run in processes of their own, on Ray, and are killed."""
PIXELS = 25
"""Seeds between two whose models predict every pixel, where this is rare else."""
TRIES = 6
"""Experiments that set a key, after which it must have changed a number in one of them."""
METHOD = 30
"""Pairs of keys that weigh as much as a method that is not picked yet."""
SHRUNK = 5
"""Most faults that are shrunk."""


@dataclass
class Verdict:
    """What the oracles say of one experiment.

    Attributes:
        seed: what it was drawn from.
        method: its method.
        refusals: draws that the project refused before.
        looked: the oracles that looked at it.
        faults: by oracle, the first thing that is wrong.
        note: "diverged" or "refused", or nothing.
        effect: a key, and whether it changed a number.
    """

    seed: int
    method: str
    refusals: int = 0
    looked: list[str] = field(default_factory=lambda: ["runs"])
    faults: dict[str, str] = field(default_factory=dict)
    note: str = ""
    effect: tuple[str, bool] | None = None


def drawn_from(seed: int) -> Drawn:
    """Draw an experiment: of every second seed, one whose method the reference has."""
    if seed % PIXELS == 1:
        return draw(seed, DENSE)
    methods = () if seed % 2 else tuple(reference.METHODS)
    return draw(seed, replace(SCOPE, methods=methods))


def judge(drawn: Drawn, names: Iterable[str] = tuple(ORACLES), *, effect: bool = False) -> Verdict:
    """Run an experiment, and ask oracles about it.

    Args:
        drawn: the experiment.
        names: which oracles, besides "runs".
        effect: whether to see if one of its keys changes a number.
    """
    verdict = Verdict(drawn.seed, drawn.experiment.algorithm.name, len(drawn.refusals))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            played = play(drawn.experiment, Path(folder))
        except Diverged:
            verdict.note = "diverged"
            return verdict
        except FedrayError as error:
            is_early = isinstance(error, UserError) and len(RunFolder(Path(folder)).rounds()) <= 1
            if is_early or any(words in str(error) for words in LATE):
                verdict.note = "refused"
            else:
                verdict.faults["runs"] = one_line(error)
            return verdict
        for name in names:
            if name == "reference" and not oracles.is_referenced(drawn.experiment, played.assembly):
                continue
            verdict.looked.append(name)
            wrong = first_fault(name, drawn, played)
            if wrong:
                verdict.faults[name] = wrong
        if effect and not verdict.faults:
            verdict.effect = oracles.effect(drawn, played)
    return verdict


def first_fault(name: str, drawn: Drawn, played: Played) -> str:
    """Return the first thing that an oracle finds wrong; "" for nothing."""
    try:
        return next(ORACLES[name](drawn, played), "")
    except Diverged:
        return ""
    except Exception:
        return format_exc()


def judge_seed(seed: int) -> Verdict:
    """Draw and judge one experiment, in a process of the pool."""
    logging.disable(logging.WARNING)
    verdict = judge(drawn_from(seed), effect=seed not in FIXED)
    is_chosen = seed % EVERY == 0 and seed not in FIXED
    if is_chosen and not verdict.faults and not verdict.note:
        verdict.looked.append("processes")
        wrong = next(oracles.processes(drawn_from(seed)), "")
        if wrong:
            verdict.faults["processes"] = wrong
    return verdict


def without_effect(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the keys that changed no number, however often they were set."""
    found: dict[str, list[bool]] = {}
    for verdict in verdicts:
        if verdict.effect is not None:
            found.setdefault(verdict.effect[0], []).append(verdict.effect[1])
    return sorted(k for k, tries in found.items() if len(tries) >= TRIES and not any(tries))


def report(verdicts: Sequence[Verdict]) -> str:
    """Return counts by oracle and by method, and what experiments ended in."""
    methods = Counter(v.method for v in verdicts)
    looked = Counter(name for v in verdicts for name in v.looked)
    wrong = Counter(name for v in verdicts for name in v.faults)
    looked["effect"] = sum(v.effect is not None for v in verdicts)
    notes, refusals = Counter(v.note for v in verdicts), sum(v.refusals for v in verdicts)
    ended = f"{notes['refused']} refused in rounds 0 and 1, {notes['diverged']} diverged"
    lines = [f"{len(verdicts)} experiments, {refusals} draws refused, {ended}"]
    lines += [f"  {name:<10} {n:>6} looked at, {wrong[name]} faults" for name, n in looked.items()]
    lines += [f"  {key} never changed a number" for key in without_effect(verdicts)]
    lines += ["methods: " + ", ".join(f"{name} {n}" for name, n in sorted(methods.items()))]
    return "\n".join(lines)


def facts_of(seed: int) -> set[object]:
    """Return what an experiment is picked for: its method, its keys, and pairs of them."""
    drawn = drawn_from(seed)
    e, partition = drawn.experiment, drawn.experiment.data.partition
    chosen = (partition.name, e.optimizer.name, e.model.group, e.data.source.name)
    single = sorted({*drawn.chosen, e.algorithm.name, *map(str, chosen)})
    facts: set[object] = {*single, *combinations(single, 2)}
    if oracles.is_referenced(e, Assembly(e)):
        facts |= {("reference", fact) for fact in facts}
    return facts | {("method", e.algorithm.name, n) for n in range(METHOD)}


def pick(count: int) -> list[int]:
    """Return the seeds below `FIRST` that have most facts together, one after the other."""
    facts, picked = {seed: facts_of(seed) for seed in range(FIRST)}, list[int]()
    seen: set[object] = set()
    while len(picked) < count:
        best = max(facts, key=lambda seed: (len(facts[seed] - seen), -seed))
        picked.append(best)
        seen |= facts.pop(best)
    return sorted(picked)


def keep(verdict: Verdict, folder: Path) -> str:
    """Shrink a fault, write its case, and return the command that runs it."""
    ((oracle, text), *_) = verdict.faults.items()
    drawn = drawn_from(verdict.seed)
    names = [oracle] if oracle in ORACLES else []
    if oracle != "processes":
        drawn = shrinking.shrink(drawn, lambda smaller: oracle in judge(smaller, names).faults)
    path = shrinking.write_case(drawn, folder, f"{oracle}: {text.strip().splitlines()[-1][:300]}")
    return f"fedray run {path.relative_to(shrinking.ROOT)} --executor serial"


def main(arguments: Any) -> int:
    """Judge the seeds in several processes; return 1 if there is a fault."""
    logging.disable(logging.WARNING)
    if arguments.pick:
        print(*pick(len(FIXED)), sep=", ")
        return 0
    first = int(time.time()) if arguments.first is None else arguments.first
    seeds = FIXED if arguments.fixed else range(first, first + arguments.seeds)
    print(f"seeds {seeds[0]} to {seeds[-1]}", flush=True)
    verdicts = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for verdict in pool.imap_unordered(judge_seed, seeds, chunksize=4):
            verdicts.append(verdict)
            for oracle, text in verdict.faults.items():
                line = text.strip().splitlines()[-1][:500]
                print(f"seed {verdict.seed}, {verdict.method}, {oracle}: {line}", flush=True)
            if verdict.faults and arguments.until_fault:
                return 1
    print(report(verdicts), flush=True)
    faulty = sorted((v for v in verdicts if v.faults), key=lambda v: v.seed)
    for verdict in faulty[:SHRUNK]:
        print(keep(verdict, shrinking.CASES), flush=True)
    return 1 if faulty or without_effect(verdicts) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of experiments")
    parser.add_argument("--first", type=int, help="the first seed; by default, from the clock")
    parser.add_argument("--fixed", action="store_true", help="instead, the seeds of the tests")
    parser.add_argument("--pick", action="store_true", help="print seeds for `FIXED`, and end")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--until-fault", action="store_true", help="end at a fault; no case of it")
    sys.exit(main(parser.parse_args()))
