"""`python -m tools.small_clip --out DIR [key=value ...]`: train a small CLIP, write its folder."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shutil import copyfile
from typing import Any

import click
import torch

from fedray.command import PATH, Command, keys, run
from fedray.config import dump_yaml, read_mapping, validate
from fedray.errors import RunFailed, UserError
from fedray.runtime.cluster import check_storage, connect
from fedray.runtime.devices import device_of_this_process
from fedray.storage.claim import claimed
from fedray.storage.files import write_atomic, write_json
from fedray.units import time_of
from tools.small_clip import texts
from tools.small_clip.images import training_pool
from tools.small_clip.loop import CHECKPOINT, EPOCHS, EpochRecord, WorkerRank, train
from tools.small_clip.model import write_model, zero_shot
from tools.small_clip.spec import Spec, load_spec

MODEL, SCORES = "model", "scores.json"
_CONFIG = "config.yaml"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@click.command(
    cls=Command,
    epilog="The same command again goes on after the last epoch that is in the folder.",
)
@keys
@click.option("--config", default="small", help="A YAML file instead of small.yaml.")
@click.option("--out", type=PATH, required=True, metavar="DIR", help="The run's folder.")
def command(keys: Sequence[str], config: str, out: Path) -> None:
    """Train a small CLIP on labelled images whose classes get captions.

    Keys are of the configuration, for example image.epochs=20 workers=2.
    """
    spec, out = load_spec(config, keys), out.resolve()
    pool = training_pool(spec)
    place = f"{spec.workers} Ray Train worker(s)" if spec.workers else "this process"
    print(
        f"{len(pool.images)} images of {len(pool.class_names)} classes, "
        f"{spec.text.epochs} + {spec.image.epochs} epochs, seed {spec.seed}, in {place}",
        flush=True,
    )
    with claimed(out):
        _check_same(spec, out)
        texts.prepare(spec, pool.class_names, out)
        write_atomic(out / _CONFIG, dump_yaml(spec.model_dump(mode="json")))
        (train_on_ray if spec.workers else train_here)(spec, out)
        scores = finish(spec, out)
    for name, score in scores.items():
        print(f"zero-shot {name}: {score['accuracy']:.3f} (chance {score['chance']:.3f})")
    print(f"the model is in {out / MODEL}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(command, argv, "python -m tools.small_clip")


def _check_same(spec: Spec, out: Path) -> None:
    """Refuse to go on in a folder that holds another configuration."""
    path = out / _CONFIG
    if path.is_file() and not spec.same_weights(validate(Spec, read_mapping(path))):
        raise UserError(f"--out {out} holds another configuration; name another folder")


def train_here(spec: Spec, out: Path) -> None:
    """Train in this process.

    Raises:
        UserError: if a GPU is asked for and there is none.
    """
    worker = WorkerRank(device=device_of_this_process(spec.gpus))
    train(spec, out, worker, lambda record: print(describe(record), flush=True))


def train_on_ray(spec: Spec, out: Path) -> None:
    """Train with Ray Train; after a worker died, all go on from the checkpoint.

    Raises:
        UserError: if the cluster is too small, or has several nodes and no shared folder.
        RunFailed: if the training fails again and again.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    nodes = connect()
    check_storage(out, len(nodes))
    share = {"CPU": spec.threads, **({"GPU": 1} if spec.gpus else {})}
    for kind, count in share.items():
        need, have = spec.workers * count, int(sum(node[kind] for node in nodes))
        if need > have:
            raise UserError(
                f"workers={spec.workers} need {need} {kind}s, the cluster has {have}; lower workers"
            )
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    trainer = TorchTrainer(
        work,
        train_loop_config={"spec": spec.model_dump(mode="json"), "out": str(out)},
        scaling_config=ScalingConfig(
            num_workers=spec.workers, use_gpu=bool(spec.gpus), resources_per_worker=share
        ),
        run_config=RunConfig(
            name="ray_train", storage_path=str(out), failure_config=FailureConfig(max_failures=2)
        ),
    )
    with _printed(out / EPOCHS):
        try:
            trainer.fit()
        except Exception as error:  # whatever a worker or Ray itself raised
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise RunFailed(
                f"training in {out} stopped ({reason}); the same command goes on with it"
            ) from error


def work(loop_config: dict[str, Any]) -> None:
    """Run the training loop of one Ray Train worker."""
    from ray import train as ray_train
    from ray.train.torch import get_device

    context = ray_train.get_context()
    worker = WorkerRank(context.get_world_rank(), context.get_world_size(), get_device())
    spec = validate(Spec, loop_config["spec"])
    train(spec, Path(loop_config["out"]), worker, lambda record: ray_train.report(asdict(record)))


def describe(record: EpochRecord) -> str:
    """Return one line about an epoch."""
    left = (record.epochs - record.epoch) * record.seconds
    return (
        f"{record.stage} epoch {record.epoch}/{record.epochs}  "
        f"loss {record.loss:.4f}  {time_of(record.seconds)}  "
        f"{record.rows / record.seconds:.0f} rows/s  left {time_of(left)}"
    )


@contextmanager
def _printed(path: Path) -> Iterator[None]:
    """Print the epochs that workers append to a file while the context lasts."""
    path.touch()
    done = threading.Event()

    def follow() -> None:
        with path.open(encoding="utf-8") as file:
            file.seek(0, 2)
            while not done.wait(0.5):
                for line in file:
                    print(describe(EpochRecord(**json.loads(line))), flush=True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def finish(spec: Spec, out: Path) -> dict[str, dict[str, float]]:
    """Write the model's folder and the scores; return the zero-shot scores."""
    weights = torch.load(out / CHECKPOINT, weights_only=True, map_location="cpu")["model"]
    write_model(spec, len(weights["text.token_embedding.weight"]), weights, out / MODEL)
    for name in _TOKENIZER:
        copyfile(out / name, out / MODEL / name)
    scores = zero_shot(out / MODEL, spec)
    write_json(out / SCORES, {"spec": spec.model_dump(mode="json"), "scores": scores})
    return scores
