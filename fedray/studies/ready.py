"""What must be so before the first run of a study: Ray, images, texts, and runs that still hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from fedray.activity import say_next
from fedray.config import Experiment
from fedray.errors import UserError
from fedray.files import results_home
from fedray.plugins import use
from fedray.records import RunFolder
from fedray.studies.study import Study
from fedray.tracking import resolve_uri
from fedray.tracking.mlflow_store import sqlite_path

TUNE_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same in a trial as here
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # result.json and MLflow say it all
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # runs are what a study is resumed from
}
_OF_IMAGES = {"source", "root", "image_size", "channels", "split", "resize", "classes"}
"""Keys of `data` that decide what is decoded."""

IN_A_TRIAL = "fedray.studies.tune,fedray.runtime.server"
"""Modules that a trial's process needs; it imports them while the driver reads data."""


def get_ready(study: Study, firsts: Sequence[Experiment], *, track: bool) -> int:
    """Connect to Ray and read what the runs will; return how many of them go at a time.

    Args:
        study: what is run.
        firsts: each kind of experiment once.
        track: whether runs are logged to MLflow.

    Raises:
        UserError: if a run can never be placed, results or runs would be lost, something is
            missing, or a configuration's partition cannot be made.
    """
    concurrent = _connect(study, firsts, track=track)
    say_next("reading images, partitions and texts")
    seen = set()
    for cell, state in study.states():  # as Ray gets ready
        for run in [*cell.all_runs(state), *cell.usual_runs()]:
            kind = _reads(run.experiment)
            if kind not in seen:
                seen.add(kind)
                _read_inputs(run.experiment, study.name_of(run))
    return concurrent


def _connect(study: Study, firsts: Sequence[Experiment], *, track: bool) -> int:
    """Connect to the cluster and print the resources that the runs need."""
    for name, value in TUNE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from fedray.runtime.cluster import check_storage, connect, drivers_node
    from fedray.runtime.resources import at_a_time, preflight, server_bundle

    say_next("connecting to Ray")
    nodes = connect(imports=IN_A_TRIAL)
    for experiment in firsts:
        check_storage(study.home, len(nodes), server_bundle(experiment))
    if drivers_node() is not None:
        print("the runs' servers are on this node, where results are written (FEDRAY_RESULTS)")
    if track:
        check_tracking(len(nodes))
    lines = [preflight(experiment, nodes) for experiment in firsts]
    fit = max(at_a_time(experiment, nodes) for experiment in firsts)  # Ray packs unequal ones
    most = study.plan.max_concurrent or fit
    concurrent = max(1, min(fit, most, study.left))
    for line in dict.fromkeys(lines):
        print(line)
    print(f"{study.left} runs, {concurrent} at a time", flush=True)
    return concurrent


def check_tracking(nodes: int) -> None:
    """Refuse a database file of one node if there are several.

    Raises:
        UserError: naming the variable to set.
    """
    uri = resolve_uri(results_home())
    if nodes > 1 and sqlite_path(uri) is not None:
        raise UserError(
            f"the cluster has {nodes} nodes, and {uri} is a file on one of them; "
            "set MLFLOW_TRACKING_URI to a server (http://host:5000), or pass --no-track"
        )


def _reads(experiment: Experiment) -> tuple[object, ...]:
    """Return what decides which inputs an experiment reads."""
    parts = experiment.data, experiment.text, experiment.algorithm.name
    size = experiment.model.feature_dim, experiment.batch_size, experiment.drop_last
    return (*map(str, parts), experiment.seed, *size)


def _read_inputs(experiment: Experiment, name: str) -> None:
    """Read an experiment's images and partition; find its text encoder's weights and width."""
    import torch

    from fedray.runtime.assembly import Assembly, text_tower

    try:
        assembly = Assembly(experiment)
        if assembly.algorithm.requires.text:
            tower = text_tower(experiment, assembly.setting, torch.device("cpu"))
            tower.check(assembly.setting.feature_dim)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def check_stored(study: Study) -> None:
    """Refuse to take finished runs of other images than there are now.

    Raises:
        UserError: with the ways to go on.
    """
    study.states()  # finds them
    if study.stored:
        say_next("comparing images with those of the runs that are there")
        runs = [(RunFolder(study.folder(k)), w.experiment) for k, w in study.stored.items()]
        check_current(runs, "remove these folders, or set FEDRAY_RESULTS to another place")


def check_current(runs: Iterable[tuple[RunFolder, Experiment]], otherwise: str) -> None:
    """Refuse to reuse runs whose identity is another one now: their data or files have changed.

    Images that cannot be read are taken to be the same: a run that needs them says what is wrong.

    Args:
        runs: folders with a result, and their experiments.
        otherwise: what to do instead of restoring data and files.

    Raises:
        UserError: naming the runs.
    """
    from fedray.runtime.assembly import read_images

    seen: dict[str, str | None] = {}
    changed = []
    for folder, experiment in runs:
        use(experiment.plugins)
        data = experiment.data.model_copy(update={"download": False})
        if (key := data.model_dump_json(include=_OF_IMAGES)) not in seen:
            try:
                seen[key] = read_images(data).sha256
            except UserError:
                seen[key] = None
        head = folder.read_head()
        now = head.data_sha256 and (seen[key] or head.data_sha256)
        if head.identity != experiment.identity(now or ""):
            changed.append(str(folder.path))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"{len(changed)} finished runs were made with other images, or other files that the "
            f"experiment names, than there are now: {', '.join(changed[:3])}{more}; restore what "
            f"it was, or {otherwise}"
        )
