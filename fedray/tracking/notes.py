"""The description of a run in MLflow, in Markdown."""

from __future__ import annotations

from fedray.storage.metric import BEST
from fedray.storage.run import Run, Traffic, data_name
from fedray.tracking.describe import ARTIFACT
from fedray.units import size_of


def run_note(done: Run) -> str:
    """Return the description of a run: method, data, accuracy, traffic, partition."""
    info, final, best = done.info, done.final, done.best
    data = info.config["data"]
    up = Traffic.total(round_.up for round_ in done.rounds).total_bytes
    down = Traffic.total(round_.down for round_ in done.rounds).total_bytes
    scale = "" if info.scale == "laptop" else f" [{info.scale} scale]"
    lines = [
        f"**{info.algorithm}** on **{data_name(info.config)}**: {data['clients']} clients, "
        f"partition `{data['partition']['name']}`, {max(done.done, 0)} of {info.planned} rounds, "
        f"seed {info.seed}{scale}."
    ]
    if best is not None:
        lines.append(
            f"Local accuracy **{100 * best.local_accuracy:.2f} %** in round {best.round} "
            f"({BEST[info.select]})."
        )
    if final is not None:
        lines.append(f"Local accuracy in the last round: {100 * final.local_accuracy:.2f} %.")
    lines.append(f"Sent: up {size_of(up)}, down {size_of(down)}.")
    lines.append("Repeat: `python -m fedray.run config.yaml`, with the file from the artifacts.")
    return "\n\n".join([*lines, picture("images by class and client", "partition.png")])


def picture(what: str, file: str) -> str:
    """Return Markdown that shows a figure from the artifacts."""
    return f"![{what}]({ARTIFACT}{file})"
