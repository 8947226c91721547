"""The CIFAR-10 table of the README: five methods, two skews, three seeds, each method tuned alike.

    FEDRAY_DATA=/path/to/datasets python benchmarks/cifar10_table.py --out results/cifar10

20 clients with small heterogeneous models share 4,000 images, Dir(0.1) and Dir(0.5). Every method
gets six configurations, tried at Dir(0.1) on a partition and weights of their own (seed 100) for
10 rounds; the one with the best local accuracy runs 12 rounds at both skews on seeds 0, 1 and 2,
each with another partition and other initial weights. Beside the table: FedTSP's accuracy against
lambda, and two checks of what FedTSP's difference to Local depends on: orthogonal targets in place
of text (alignment without meaning), and four times the images. Runs that are already in the folder
are not done again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedray.evaluation import mean_and_std

EXPERIMENT = "fedtsp_cifar10"
ALPHAS = (0.1, 0.5)
TUNING_ALPHA = 0.1
SEEDS = (0, 1, 2)
TUNING_SEED, TUNING_ROUNDS, ROUNDS = 100, 10, 12
RATES = (0.01, 0.03, 0.1)
LAMBDAS = (0, 1, 3, 7, 10)
ORTHOGONAL = ("text.encoder=orthogonal", "algorithm.prompt_length=0")
MORE_IMAGES = 16_000

Config = tuple[str, ...]
Job = tuple[Path, Config]

GRIDS: dict[str, list[Config]] = {
    "local": [(f"lr={lr}",) for lr in (0.005, 0.01, 0.02, 0.03, 0.06, 0.1)],
    "fedproto": [
        (f"lr={lr}", f"algorithm.lambda={weight}")
        for lr, weight in itertools.product(RATES, (1, 10))
    ],
    "fedtgp": [
        (f"lr={lr}", f"algorithm.lambda={weight}")
        for lr, weight in itertools.product(RATES, (1, 10))
    ],
    "alignfed": [
        (f"lr={lr}", f"algorithm.lambda_start={weight}", f"algorithm.lambda_end={weight / 10}")
        for lr, weight in itertools.product(RATES, (20, 2))
    ],
    "fedtsp": [
        (f"lr={lr}", f"algorithm.lambda={weight}", f"algorithm.tau={tau}")
        for lr, (weight, tau) in itertools.product(RATES, ((7, 0.01), (1, 0.1)))
    ],
}


def do(job: Job) -> None:
    """Run one experiment in this process; a run that is already there is not done again."""
    import torch

    from fedray.errors import FedrayError
    from fedray.files import write_json
    from fedray.runtime.assembly import resolve
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session

    out, assignments = job
    if (out / "done.json").exists():
        return
    experiment = resolve(EXPERIMENT, assignments)
    session = Session(experiment, out, lambda parts: SerialExecutor(parts, torch.device("cpu")))
    failure = None
    try:
        for _ in session.rounds():
            pass
    except FedrayError as error:
        failure = str(error)
    write_json(out / "done.json", {"failure": failure})
    print(f"{out.parent.name}/{out.name}: {failure or f'{accuracy(out):.4f}'}", flush=True)


def accuracy(out: Path, at: str = "best") -> float:
    """A run's local accuracy, best over rounds or final; 0 for one that failed."""
    if json.loads((out / "done.json").read_text())["failure"] is not None:
        return 0.0
    value: float = json.loads((out / "result.json").read_text())[at]["local_accuracy"]
    return value


def settings(method: str, alpha: float, seed: int, rounds: int, config: Config) -> Config:
    """All assignments of one run."""
    return (
        f"algorithm={method}", *config, f"data.partition.alpha={alpha}",
        f"seed={seed}", f"rounds={rounds}", "checkpoint_every=0",
    )  # fmt: skip


def label(config: Config) -> str:
    """A folder name for a configuration."""
    return "_".join(item.removeprefix("algorithm.") for item in config)


def run_all(jobs: Iterable[Job], processes: int) -> None:
    """Do all jobs on so many processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for _ in pool.imap_unordered(do, list(jobs)):
            pass


def tuned(out: Path, method: str) -> Config:
    """The configuration with the best tuning accuracy."""
    folder = out / f"tune-{method}-{TUNING_ALPHA}"
    return max(GRIDS[method], key=lambda config: accuracy(folder / label(config)))


def final_folder(out: Path, method: str, alpha: float, seed: int) -> Path:
    """Where a final run lies."""
    return out / f"final-{method}-{alpha}" / f"seed_{seed}"


def table(out: Path, methods: Sequence[str]) -> str:
    """The results as a Markdown table: accuracy in %, and the paired difference to Local."""
    heads = [f"{what} Dir({alpha})" for alpha in ALPHAS for what in ("best", "last", "- Local")]
    lines = [f"| method | {' | '.join(heads)} | chosen |", "|---" * (len(heads) + 2) + "|"]
    for method in methods:
        cells = []
        for alpha in ALPHAS:
            folders = [final_folder(out, method, alpha, seed) for seed in SEEDS]
            alone = [final_folder(out, "local", alpha, seed) for seed in SEEDS]
            cells += [spread(folders), spread(folders, "final"), difference(folders, alone)]
        chosen = ", ".join(item.removeprefix("algorithm.") for item in tuned(out, method))
        lines.append(f"| {method} | {' | '.join(cells)} | {chosen} |")
    return "\n".join(lines)


def spread(folders: Sequence[Path], at: str = "best") -> str:
    """Mean and standard deviation over runs, in %."""
    mean, std = mean_and_std([100 * accuracy(folder, at) for folder in folders])
    return f"{mean:.1f} ± {std:.1f}"


def difference(folders: Sequence[Path], base: Sequence[Path]) -> str:
    """Mean and standard deviation of the differences seed by seed, in points."""
    pairs = zip(folders, base, strict=True)
    mean, std = mean_and_std([100 * (accuracy(mine) - accuracy(other)) for mine, other in pairs])
    return f"{mean:+.1f} ± {std:.1f}"


def checks(out: Path, processes: int) -> str:
    """FedTSP with orthogonal targets, and FedTSP and Local with more images, as a table."""
    runs: dict[str, tuple[float, Config]] = {}
    for alpha in ALPHAS:
        runs[f"orthogonal-{alpha}"] = (alpha, (*tuned(out, "fedtsp"), *ORTHOGONAL))
    for method in ("local", "fedtsp"):
        config = (*tuned(out, method), f"data.samples={MORE_IMAGES}")
        runs[f"images-{method}"] = (TUNING_ALPHA, config)
    folders = {name: [out / name / f"seed_{seed}" for seed in SEEDS] for name in runs}
    jobs = []
    for name, (alpha, config) in runs.items():
        method = "local" if name == "images-local" else "fedtsp"
        jobs += [
            (folder, settings(method, alpha, seed, ROUNDS, config))
            for folder, seed in zip(folders[name], SEEDS, strict=True)
        ]
    run_all(jobs, processes)
    lines = ["| check | best | - Local |", "|---|---|---|"]
    for alpha in ALPHAS:
        own = folders[f"orthogonal-{alpha}"]
        local = [final_folder(out, "local", alpha, seed) for seed in SEEDS]
        what = f"FedTSP, orthogonal targets, Dir({alpha})"
        lines.append(f"| {what} | {spread(own)} | {difference(own, local)} |")
    local, own = folders["images-local"], folders["images-fedtsp"]
    where = f"{MORE_IMAGES:,} images, Dir({TUNING_ALPHA})"
    lines.append(f"| Local, {where} | {spread(local)} | |")
    lines.append(f"| FedTSP, {where} | {spread(own)} | {difference(own, local)} |")
    return "\n".join(lines)


def lambda_curve(out: Path, processes: int) -> str:
    """FedTSP's accuracy against lambda at Dir(0.1), everything else as tuned; saves a figure."""
    from fedray.report import Row, figure_sweep

    chosen = tuned(out, "fedtsp")
    rest = tuple(item for item in chosen if "lambda" not in item)
    folders: dict[float, list[Path]] = {}
    jobs = []
    for weight in LAMBDAS:
        config = (*rest, f"algorithm.lambda={weight}")
        if set(config) == set(chosen):  # the final runs already are this point
            folders[weight] = [final_folder(out, "fedtsp", 0.1, seed) for seed in SEEDS]
            continue
        folders[weight] = [out / f"lambda-{weight}" / f"seed_{seed}" for seed in SEEDS]
        jobs += [
            (folder, settings("fedtsp", 0.1, seed, ROUNDS, config))
            for folder, seed in zip(folders[weight], SEEDS, strict=True)
        ]
    run_all(jobs, processes)
    lines = ["| λ | best | last |", "|---|---|---|"]
    rows = []
    for weight, own in folders.items():
        lines.append(f"| {weight} | {spread(own)} | {spread(own, 'final')} |")
        mean, std = mean_and_std([accuracy(folder) for folder in own])
        rows.append(Row({"algorithm.lambda": weight}, mean, std, len(own)))
    figure_sweep(rows, "algorithm.lambda", out / "lambda.png", "local accuracy, best round")
    return "\n".join(lines)


def main() -> None:
    """Tune, run, tabulate."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--out", type=Path, required=True)
    cli.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    cli.add_argument("--methods", nargs="*", default=list(GRIDS), choices=list(GRIDS))
    cli.add_argument("--only-table", action="store_true", help="leave lambda and the checks out")
    args = cli.parse_args()
    out: Path = args.out
    run_all(
        [
            (out / f"tune-{method}-{TUNING_ALPHA}" / label(config),
             settings(method, TUNING_ALPHA, TUNING_SEED, TUNING_ROUNDS, config))
            for method in args.methods for config in GRIDS[method]
        ],
        args.processes,
    )  # fmt: skip
    run_all(
        [
            (final_folder(out, method, alpha, seed),
             settings(method, alpha, seed, ROUNDS, tuned(out, method)))
            for alpha in ALPHAS for seed in SEEDS for method in args.methods
        ],
        args.processes,
    )  # fmt: skip
    text = table(out, args.methods)
    print(text)
    if not args.only_table and {"local", "fedtsp"} <= set(args.methods):
        for more in (lambda_curve, checks):
            part = more(out, args.processes)
            print(part)
            text += "\n\n" + part
    (out / "table.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
