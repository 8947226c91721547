"""The CIFAR-10 table of the README: five methods, two skews, three seeds, each method tuned alike.

    FEDRAY_DATA=/path/to/datasets python benchmarks/cifar10_table.py --out results/cifar10

20 clients with small heterogeneous models share 4,000 images, Dir(0.1) and Dir(0.5). Every method
gets six configurations, tried at Dir(0.1) on a partition and weights of their own (seed 100) for
10 rounds; the one with the best local accuracy runs 12 rounds at both skews on seeds 0, 1 and 2,
each with another partition and other initial weights. Further tables: FedTSP's accuracy against
lambda, and two checks of what FedTSP's difference to Local depends on: orthogonal targets in place
of text (alignment without meaning), and four times the images. Runs that are already in the folder
are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from tables import (
    Config,
    Job,
    against,
    best,
    chosen,
    failed,
    label,
    markdown,
    run_all,
    short,
    spread,
)

from fedray.sweep.seeds import mean_and_std

EXPERIMENT = "fedtsp_cifar10"
ALPHAS = (0.1, 0.5)
TUNING_ALPHA = 0.1
SEEDS = (0, 1, 2)
TUNING_SEED, TUNING_ROUNDS, ROUNDS = 100, 10, 12
RATES = (0.01, 0.03, 0.1)
LAMBDAS = (0, 1, 3, 7, 10)
ORTHOGONAL = ("text.encoder=orthogonal", "algorithm.prompt_length=0")
MORE_IMAGES = 16_000

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


def job(out: Path, method: str, alpha: float, seed: int, rounds: int, config: Config) -> Job:
    """One run of a method."""
    fixed = (f"data.partition.alpha={alpha}", f"seed={seed}", f"rounds={rounds}")
    return Job(out, EXPERIMENT, (f"algorithm={method}", *config, *fixed))


def tuned(out: Path, method: str) -> Config:
    """The configuration with the best tuning accuracy."""
    return chosen(out / f"tune-{method}-{TUNING_ALPHA}", GRIDS[method])


def finals(out: Path, method: str, alpha: float) -> list[Path]:
    """Where a method's final runs lie, seed by seed."""
    return [out / f"final-{method}-{alpha}" / f"seed_{seed}" for seed in SEEDS]


def table(out: Path, methods: Sequence[str]) -> str:
    """The results as a Markdown table: accuracy in %, and the paired difference to Local."""
    heads = [f"{what} Dir({alpha})" for alpha in ALPHAS for what in ("best", "last", "- Local")]
    rows = [["method", *heads, "chosen"]]
    for method in methods:
        row = [method]
        for alpha in ALPHAS:
            folders = finals(out, method, alpha)
            row += [spread(folders), spread(folders, at="last")]
            row += ["" if method == "local" else against(folders, finals(out, "local", alpha))]
        rows.append([*row, ", ".join(short(tuned(out, method)))])
    return markdown(rows)


def lambda_curve(out: Path, processes: int) -> str:
    """FedTSP's accuracy against lambda at Dir(0.1), everything else as tuned; saves a figure.

    The figure leaves out a lambda under which a run diverged; the table names it.
    """
    from fedray.records import Metric
    from fedray.report import Row, figure_sweep

    config = tuned(out, "fedtsp")
    rest = tuple(item for item in config if "lambda" not in item)
    folders: dict[float, list[Path]] = {}
    jobs = []
    for weight in LAMBDAS:
        point = (*rest, f"algorithm.lambda={weight}")
        if set(point) == set(config):  # the final runs already are this point
            folders[weight] = finals(out, "fedtsp", 0.1)
            continue
        folders[weight] = [out / f"lambda-{weight}" / f"seed_{seed}" for seed in SEEDS]
        pairs = zip(folders[weight], SEEDS, strict=True)
        jobs += [job(folder, "fedtsp", 0.1, seed, ROUNDS, point) for folder, seed in pairs]
    run_all(jobs, processes)
    rows = [["λ", "best", "last"]]
    points = []
    for weight, runs in folders.items():
        rows.append([str(weight), spread(runs), spread(runs, at="last")])
        if not any(map(failed, runs)):
            mean, std = mean_and_std([best(folder) for folder in runs])
            points.append(Row({"algorithm.lambda": weight}, mean, std, len(runs)))
    figure_sweep(
        points, "algorithm.lambda", out / "lambda.png", Metric("local_accuracy"), title="best round"
    )
    return markdown(rows)


def checks(out: Path, processes: int) -> str:
    """FedTSP with orthogonal targets, and FedTSP and Local with more images, as a table."""
    runs: dict[str, tuple[str, float, Config]] = {}
    for alpha in ALPHAS:
        runs[f"orthogonal-{alpha}"] = ("fedtsp", alpha, (*tuned(out, "fedtsp"), *ORTHOGONAL))
    for method in ("local", "fedtsp"):
        config = (*tuned(out, method), f"data.samples={MORE_IMAGES}")
        runs[f"images-{method}"] = (method, TUNING_ALPHA, config)
    folders = {name: [out / name / f"seed_{seed}" for seed in SEEDS] for name in runs}
    run_all(
        [
            job(folder, method, alpha, seed, ROUNDS, config)
            for name, (method, alpha, config) in runs.items()
            for folder, seed in zip(folders[name], SEEDS, strict=True)
        ],
        processes,
    )
    rows = [["check", "best", "- Local"]]
    for alpha in ALPHAS:
        orthogonal = folders[f"orthogonal-{alpha}"]
        what = f"FedTSP, orthogonal targets, Dir({alpha})"
        rows.append([what, spread(orthogonal), against(orthogonal, finals(out, "local", alpha))])
    local, with_images = folders["images-local"], folders["images-fedtsp"]
    where = f"{MORE_IMAGES:,} images, Dir({TUNING_ALPHA})"
    rows.append([f"Local, {where}", spread(local), ""])
    rows.append([f"FedTSP, {where}", spread(with_images), against(with_images, local)])
    return markdown(rows)


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
            job(out / f"tune-{method}-{TUNING_ALPHA}" / label(config), method, TUNING_ALPHA,
                TUNING_SEED, TUNING_ROUNDS, config)
            for method in args.methods for config in GRIDS[method]
        ],
        args.processes,
    )  # fmt: skip
    run_all(
        [
            job(folder, method, alpha, seed, ROUNDS, tuned(out, method))
            for alpha in ALPHAS for method in args.methods
            for folder, seed in zip(finals(out, method, alpha), SEEDS, strict=True)
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
