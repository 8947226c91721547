"""`python -m fedray.pretrain [CONFIG] [key=value ...]`: train a small CLIP, write its folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedray.command import (
    CommandLine,
    as_path,
    go_on_with,
    run_command,
    say_stopped,
    whole_number,
)
from fedray.config import dump_yaml, read_mapping, validate
from fedray.errors import RunFailed, UserError
from fedray.files import reserve, results_home, stamp, unused_removed, write_atomic, write_json
from fedray.pretrain import distillation, model_card
from fedray.pretrain.export import write_model
from fedray.pretrain.images import training_pool
from fedray.pretrain.loop import CHECKPOINT, EPOCHS, EpochRecord, WorkerRank, train
from fedray.pretrain.scores import zero_shot
from fedray.pretrain.spec import PretrainConfig, load_config
from fedray.runtime.devices import check_speed, device_of_this_process
from fedray.units import time_of

MODEL = "model"
SCORES = "scores.json"
_LOCK_SECONDS = 5
_CONFIG = "config.yaml"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


PROG = "python -m fedray.pretrain"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.pretrain`."""
    cli = CommandLine(
        prog=prog,
        description="Train a small CLIP on labelled images whose classes get captions.",
    )
    cli.add_argument("config", nargs="?", help="a shipped name (small) or a YAML file")
    cli.add_argument("set", nargs="*", metavar="key=value", help="image.epochs=20 seed=1")
    cli.add_argument(
        "--workers",
        type=whole_number(0, 10_000),
        metavar="N",
        help="Ray Train workers; 0: in this process",
    )
    cli.add_argument("--out", type=as_path, metavar="DIR", help="a new folder for the results")
    cli.add_argument(
        "--resume", type=as_path, metavar="DIR", help="go on with what is in this folder"
    )
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    config, out = what_and_where(args)
    pool = training_pool(config)
    where = f"{config.workers} Ray Train worker(s)" if config.workers else "this process"
    print(
        f"{config.name}: {len(pool.images)} images of {len(pool.class_names)} classes, "
        f"{config.text.epochs} + {config.image.epochs} epochs, seed {config.seed}, in {where}",
        flush=True,
    )
    if not config.gpus:
        check_speed(config.precision, torch.device("cpu"))
    new = None if args.resume or args.out else reserve(out)
    out = new or out
    try:
        with unused_removed(new):
            _train_and_finish(config, pool.class_names, out)
    except KeyboardInterrupt as stop:
        begun = (out / CHECKPOINT).is_file()
        say_stopped(
            stop,
            go_on_with("fedray.pretrain", "--resume", out)
            if begun
            else f"no checkpoint is in {out} yet, so there is nothing to go on with",
        )
        raise
    return 0


def _train_and_finish(config: PretrainConfig, class_names: tuple[str, ...], out: Path) -> None:
    with _held(out):
        distillation.prepare(config, class_names, out)
        write_atomic(out / _CONFIG, dump_yaml(config.model_dump(mode="json")))
        (run_on_ray if config.workers else run_here)(config, out)
        scores = finish(config, out)
    for name, score in scores.items():
        print(f"zero-shot {name}: {score['accuracy']:.3f} (chance {score['chance']:.3f})")
    print(f"the model is in {out / MODEL}")


def what_and_where(args: argparse.Namespace) -> tuple[PretrainConfig, Path]:
    """The configuration and the run's folder, from the command line; a new one is not yet made.

    Raises:
        UserError: when they contradict each other or the folder is taken.
    """
    if args.config and "=" in args.config and not Path(args.config).is_file():
        args.config, args.set = None, [args.config, *args.set]
    if args.workers is not None:
        args.set = [*args.set, f"workers={args.workers}"]
    if args.resume and args.out:
        raise UserError("--out and --resume both name the run's folder; give one of them")
    if args.resume:
        out = args.resume.resolve()
        if not (out / _CONFIG).is_file():
            raise UserError(f"--resume {out}: there is no {_CONFIG}, so nothing to go on with")
        before = validate(PretrainConfig, read_mapping(out / _CONFIG))
        config = load_config(args.config or str(out / _CONFIG), args.set)
        if config.reproducibility_key() != before.reproducibility_key():
            raise UserError(
                f"--resume {out} holds another configuration; pass what it was started with, "
                "or nothing but --resume"
            )
        return config, out
    config = load_config(args.config or "small", args.set)
    if args.out is None:
        return config, results_home() / "pretrain" / f"{config.name}-{stamp()}"
    out = args.out.resolve()
    if (out / _CONFIG).exists():
        raise UserError(f"{out} already holds a run; go on with --resume {out}, or name another")
    return config, out


@contextlib.contextmanager
def _held(out: Path) -> Iterator[None]:
    """Keep every other process out of a run's folder.

    Raises:
        UserError: when another process has it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout:
        raise UserError(f"{out} belongs to a training that is still running") from None


def run_here(config: PretrainConfig, out: Path) -> None:
    """Train in this process.

    Raises:
        UserError: when a GPU is asked for and there is none.
    """
    worker = WorkerRank(device=device_of_this_process(config.gpus))
    train(config, out, worker, lambda record: print(describe(record), flush=True))


def run_on_ray(config: PretrainConfig, out: Path) -> None:
    """Train with Ray Train; a worker that dies is replaced and all go on from the checkpoint.

    Raises:
        UserError: when the cluster is too small, or has several nodes and no shared folder.
        RunFailed: when the training fails again and again.
    """
    from fedray.runtime.cluster import check_storage, connect

    nodes = connect()
    check_storage(out, len(nodes))
    need = config.workers * config.threads
    have = int(sum(node["CPU"] for node in nodes))
    if need > have:
        raise UserError(
            f"workers={config.workers} with threads={config.threads} need {need} CPUs, "
            f"the cluster has {have}; lower workers or threads"
        )
    if config.gpus and config.workers > (gpus := int(sum(node["GPU"] for node in nodes))):
        raise UserError(
            f"workers={config.workers} need a GPU each, the cluster has {gpus}; "
            "lower workers or set gpus=0"
        )
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.ERROR)
    share = {"CPU": config.threads, **({"GPU": 1} if config.gpus else {})}
    trainer = TorchTrainer(
        work,
        train_loop_config={"config": config.model_dump(mode="json"), "out": str(out)},
        scaling_config=ScalingConfig(
            num_workers=config.workers, use_gpu=bool(config.gpus), resources_per_worker=share
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
            raise RunFailed(
                f"training in {out} stopped ({lines[-1] if lines else type(error).__name__}); "
                f"go on with --resume {out}"
            ) from error


def work(loop_config: dict[str, Any]) -> None:
    """What every Ray Train worker does."""
    from ray import train as ray_train
    from ray.train.torch import get_device

    context = ray_train.get_context()
    worker = WorkerRank(context.get_world_rank(), context.get_world_size(), get_device())
    config = validate(PretrainConfig, loop_config["config"])
    out = Path(loop_config["out"])
    train(config, out, worker, lambda record: ray_train.report(asdict(record)))


def describe(record: EpochRecord) -> str:
    """One epoch in a line."""
    left = (record.epochs - record.epoch) * record.seconds
    return (
        f"{record.stage} epoch {record.epoch}/{record.epochs}  "
        f"loss {record.loss:.4f}  {time_of(record.seconds)}  "
        f"{record.rows / record.seconds:.0f} rows/s  left {time_of(left)}"
    )


@contextlib.contextmanager
def _printed(path: Path) -> Iterator[None]:
    """Print the epochs that the workers append to a file while the context lasts."""
    start = path.stat().st_size if path.is_file() else 0
    done = threading.Event()

    def follow() -> None:
        position = start
        while not done.wait(0.5):
            position = _print_epochs(path, position)
        _print_epochs(path, position)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _print_epochs(path: Path, position: int) -> int:
    """Print the whole lines from a position on; returns where they end."""
    if not path.is_file():
        return position
    with path.open(encoding="utf-8") as file:
        file.seek(position)
        for line in iter(file.readline, ""):
            if not line.endswith("\n"):
                break
            print(describe(EpochRecord(**json.loads(line))), flush=True)
            position = file.tell()
    return position


def finish(config: PretrainConfig, out: Path) -> dict[str, dict[str, float]]:
    """Write the model's folder and the scores; returns the zero-shot scores."""
    saved = torch.load(out / CHECKPOINT, weights_only=True, map_location="cpu")
    folder = out / MODEL
    vocabulary = saved["model"]["token_embedding.weight"].shape[0]
    write_model(config, vocabulary, saved["model"], folder)
    for name in _TOKENIZER:
        write_atomic(folder / name, (out / name).read_text(encoding="utf-8"))
    scores = zero_shot(folder, config)
    parameters = sum(tensor.numel() for tensor in saved["model"].values())
    card = model_card.model_card(config, out, parameters, scores)
    write_atomic(folder / model_card.FILE, card)
    write_json(out / SCORES, {"config": config.model_dump(mode="json"), "scores": scores})
    return scores
