"""Accuracy against epsilon of FedAvg on digits, with central and with local noise.

    python benchmarks/privacy.py --out DIR
    python benchmarks/privacy.py --out DIR --only-table

The two shipped experiments, over noise multipliers and seeds; a seed is the experiment's and, so
that the picture can be made again, the noise's. Nothing is tuned for a noise multiplier; S, the
learning rate and the rounds are those of the experiments. Writes DIR/privacy.png.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.records import RunFolder
from fedray.sweep.seeds import mean_and_std

ACCURACY = "global_accuracy"
SIGMAS = {
    "fedavg_digits_central_dp": (0.5, 1, 2, 4, 8, 16),
    "fedavg_digits_local_dp": (0.125, 0.25, 0.5, 1, 2),
}
NAMES = {"fedavg_digits_central_dp": "central", "fedavg_digits_local_dp": "local"}


@dataclass(frozen=True)
class Job:
    """One run: where it lies, which experiment, and the overrides."""

    out: Path
    experiment: str
    assignments: tuple[str, ...]


def do(job: Job) -> None:
    """Run one experiment in this process, unless it is already there."""
    import torch

    from fedray.runtime.resolve import resolve
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session

    if RunFolder(job.out).has_result:
        return
    asked = resolve(job.experiment, (*job.assignments, "checkpoint_every=0"))
    session = Session(asked, job.out, lambda parts: SerialExecutor(parts, torch.device("cpu")))
    for _ in session.rounds():
        pass
    print(f"{job.out.parent.name}/{job.out.name}: done", flush=True)


def run_all(jobs: Sequence[Job], processes: int) -> None:
    """Do all jobs on so many processes."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for _ in pool.imap_unordered(do, jobs):
            pass


def last(out: Path, metric: str) -> float:
    """A run's last value of a metric."""
    return list(RunFolder(out).read().curve(metric).values())[-1]


@dataclass(frozen=True)
class Point:
    """One noise multiplier over the seeds.

    Attributes:
        name: central, local, or what it is compared with.
        sigma: the noise multiplier; None without noise.
        folders: its runs.
    """

    name: str
    sigma: float | None
    folders: Sequence[Path]

    def stat(self, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric after the last round."""
        return mean_and_std([last(folder, metric) for folder in self.folders])


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--out", type=Path, required=True)
    cli.add_argument("--seeds", type=int, default=5)
    cli.add_argument("--processes", type=int, default=2)
    cli.add_argument("--only-table", action="store_true")
    args = cli.parse_args()
    jobs, points = plan(args.out, range(args.seeds))
    if not args.only_table:
        run_all(jobs, args.processes)
    print_table(points)
    draw(points, args.out / "privacy.png")


def plan(out: Path, seeds: Sequence[int]) -> tuple[list[Job], list[Point]]:
    """All runs, and the points that they make."""
    jobs, points = [], []

    def add(name: str, sigma: float | None, experiment: str, keys: tuple[str, ...]) -> None:
        folders = [out / f"{name}_{sigma}".replace(" ", "_") / str(seed) for seed in seeds]
        for seed, folder in zip(seeds, folders, strict=True):
            own = (*keys, f"seed={seed}", f"privacy.noise_seed={seed}", "eval_every=0")
            jobs.append(Job(folder, experiment, own))
        points.append(Point(name, sigma, folders))

    central = "fedavg_digits_central_dp"
    off = ("privacy.mode=none", "privacy.clip_norm=null", "privacy.noise_multiplier=0")
    add("no privacy", None, central, off)
    add("clipped", None, central, ("privacy.noise_multiplier=0",))
    for experiment, sigmas in SIGMAS.items():
        for sigma in sigmas:
            keys = (f"privacy.noise_multiplier={sigma}",)
            add(NAMES[experiment], sigma, experiment, keys)
    return jobs, points


def print_table(points: Sequence[Point]) -> None:
    print("| noise | σ | ε | ε, participants known | accuracy |\n|---|---|---|---|---|")
    for point in points:
        mean, std = point.stat(ACCURACY)
        cells = [point.name, "", "", ""]
        if point.sigma is not None:
            known = point.stat("epsilon_known_participants")[0]
            cells[1:] = [f"{point.sigma:g}", f"{point.stat('epsilon')[0]:.3g}", f"{known:.3g}"]
        print("| " + " | ".join([*cells, f"{100 * mean:.1f} ± {100 * std:.1f}"]) + " |")


def draw(points: Sequence[Point], path: Path) -> None:
    """Accuracy against epsilon on a logarithmic axis, a curve for each place of the noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name in NAMES.values():
        own = [point for point in points if point.name == name]
        accuracy = [point.stat(ACCURACY) for point in own]
        axes.errorbar(
            [point.stat("epsilon")[0] for point in own],
            [100 * mean for mean, _ in accuracy],
            [100 * std for _, std in accuracy],
            marker="o",
            capsize=3,
            label=f"{name} noise",
        )
    for point, style in zip(points[:2], ("-", ":"), strict=True):
        level = 100 * point.stat(ACCURACY)[0]
        axes.axhline(level, color="grey", linestyle=style, label=point.name)
    axes.set_xscale("log")
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel("global accuracy, last round (%)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
