"""Checks before the first run of a study: Ray, images, texts, and finished runs that are reused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from fedray.base.activity import say_next
from fedray.base.errors import UserError
from fedray.config import IMAGES, Experiment, keys_of
from fedray.config.plugins import use
from fedray.evaluation.metrics import declared_metrics
from fedray.results.record import Measured
from fedray.storage.metric import find_metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.plan import StudyPlan
from fedray.studies.study import Study
from fedray.tracking.store import resolve_uri, sqlite_path

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # rounds.jsonl and MLflow have all results
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # studies continue from runs, not from Tune's checkpoints
}


def get_ready(study: Study, firsts: Sequence[Experiment], *, track: bool) -> int:
    """Connect to Ray and read each cell's first inputs; return the number of concurrent runs.

    A run whose own inputs cannot be read, or whose partition cannot be made, fails by itself later.

    Args:
        study: the study to run.
        firsts: the first experiment of each cell.
        track: whether runs are logged to MLflow.

    Raises:
        UserError: if a run can never be placed, results or runs would be lost, or the first inputs
            of a cell are wrong.
    """
    from fedray.runtime.inputs import check_inputs

    for experiment in firsts:
        check_inputs(experiment)
    concurrent = _connect(study, firsts, track=track)
    say_next("reading images, partitions and texts")
    kinds: set[tuple[object, ...]] = set()
    for place, experiment in zip(study.plan.places, firsts, strict=True):
        if (kind := _input_key(experiment)) not in kinds:  # Ray starts its workers meanwhile
            kinds.add(kind)
            _read_inputs(experiment, "" if study.plan.is_sweep else f"{place}: ")
    return concurrent


def check_first_rung(plan: StudyPlan, experiment: Experiment) -> None:
    """Raise an error if ASHA would compare a sweep's runs before their first evaluation."""
    asha, every = plan.tuning.asha, experiment.eval_every
    chooser = find_metric(plan.chosen_by(next(iter(plan.rows))), declared_metrics())
    tested = chooser is None or chooser.on != "train"
    if asha is not None and tested and not 0 < every <= asha.grace_rounds:
        raise UserError(
            f"tuning.asha.grace_rounds={asha.grace_rounds}: no run has been evaluated by then "
            f"(eval_every={every}); set it to at least eval_every"
        )


def _connect(study: Study, firsts: Sequence[Experiment], *, track: bool) -> int:
    """Connect to the cluster and print the resources that the runs need."""
    for name, value in TUNE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    from fedray.runtime.cluster import check_storage, connect
    from fedray.runtime.resources import at_a_time, preflight

    if not ray.is_initialized():
        say_next("connecting to Ray")
    nodes = connect()
    check_storage(study.home, len(nodes))
    if track:
        check_tracking(len(nodes))
    lines = [preflight(experiment, nodes) for experiment in firsts]
    fit = max(at_a_time(experiment, nodes) for experiment in firsts)  # Ray packs unequal runs
    most = study.plan.max_concurrent or fit
    concurrent = max(1, min(fit, most, study.remaining))
    for line in dict.fromkeys(lines):
        print(line)
    print(f"{study.remaining} runs, {concurrent} at a time", flush=True)
    return concurrent


def check_tracking(nodes: int) -> None:
    """Raise an error if MLflow's database is a file on one of several nodes.

    Raises:
        UserError: naming the variable to set.
    """
    uri = resolve_uri()
    if nodes > 1 and sqlite_path(uri) is not None:
        raise UserError(
            f"the cluster has {nodes} nodes, and {uri} is a file on one of them; "
            "set MLFLOW_TRACKING_URI to a server (http://host:5000), or pass --no-track"
        )


def _input_key(experiment: Experiment) -> tuple[object, ...]:
    """Return a key that is equal for experiments that read the same inputs."""
    parts = experiment.data, experiment.text, experiment.algorithm.name
    size = experiment.model.feature_dim, experiment.batch_size, experiment.drop_last
    return (*map(str, parts), experiment.seed, *size)


def _read_inputs(experiment: Experiment, where: str) -> None:
    """Read an experiment's images and partition, and check its text encoder's weights and width.

    Raises:
        UserError: if an input is wrong; the message begins with `where`.
    """
    import torch

    from fedray.runtime.assembly import Assembly, text_tower

    try:
        assembly = Assembly(experiment)
        if assembly.algorithm.requires.text:
            tower = text_tower(experiment, assembly.setting, torch.device("cpu"))
            tower.check(assembly.setting.feature_dim)
    except UserError as error:
        raise UserError(f"{where}{error}") from None


def check_stored(study: Study) -> None:
    """Raise an error if stored runs are damaged, or images have changed since finished ones.

    Raises:
        UserError: naming the runs.
    """
    finished = []
    for run in study.needed.values():
        folder = RunFolder(study.folder(run.key))
        if not folder.has_run or run.key in study.failures:
            continue
        if isinstance(study.end_of(run), Measured):
            finished.append((folder, run.experiment))
            continue
        try:
            folder.read()
        except UserError as error:
            again = f"remove {folder.path}, so that {study.plan.name} runs it again"
            raise UserError(f"{error}; or {again}") from None
    if finished:
        say_next("comparing images with those of the finished runs")
        check_current(finished, "remove these folders, or set FEDRAY_RESULTS to another place")


def check_current(runs: Iterable[tuple[RunFolder, Experiment]], otherwise: str) -> None:
    """Raise an error if the identity of a finished run has changed with its data or files.

    Images that cannot be read count as unchanged; a run that needs them raises the error.

    Args:
        runs: folders with a result, and their experiments.
        otherwise: the alternative to restoring data and files, for the message.

    Raises:
        UserError: naming the runs.
    """
    from fedray.runtime.assembly import image_keys, read_images

    checksums: dict[str, str] = {}
    changed = []
    for folder, experiment in runs:
        use(experiment.plugins)
        keys = {key.removeprefix("data.") for key in keys_of(IMAGES)} | {"root"}
        images = experiment.data.model_dump_json(include=keys)
        images += experiment.model.model_dump_json(include={"clip"})
        if images not in checksums:
            checksums[images] = ""
            with suppress(UserError):
                data = image_keys(experiment).model_copy(update={"download": False})
                checksums[images] = read_images(data).sha256
        head = folder.read_head()
        checksum = head.data_sha256 and (checksums[images] or head.data_sha256)
        if head.identity != experiment.identity(checksum or ""):
            changed.append(str(folder.path))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"the images, or other files that the experiment names, have changed since "
            f"{len(changed)} finished runs: {', '.join(changed[:3])}{more}; restore the files, or "
            f"{otherwise}"
        )
