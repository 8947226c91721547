"""What must hold of a drawn experiment, cheapest first; each oracle yields what is wrong.

runs       what was accepted runs to its end
records    what the records say of themselves: participants, roles of images, best and final round
resume     stopped, continued on other resources and with clients in reverse order
reference  the loops of `reference_loops`
relations  changes of keys that change no number, and methods that are another one
effect     a key that is set changes a number
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import nibabel
import numpy as np
import reference_loops as reference
import torch
from PIL import Image
from torch import Tensor

import fedray
from fedray.base.errors import FedrayError, UserError, one_line
from fedray.config import Experiment, with_read_plugins
from fedray.config.plugins import Plugin
from fedray.core import algorithms
from fedray.data.imageset import TEST, TRAIN, ImageSet
from fedray.laws.draws import (
    DIGITS,
    SHAPES,
    SMALL_CLIP,
    Drawn,
    Scope,
    accepted,
    check_relation,
    relations_of,
)
from fedray.laws.traces import CPU, Reversed, Trace, Violation, compare_traces
from fedray.models.architectures import architectures
from fedray.runtime.assembly import Assembly
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = str(Path(__file__).with_name("networks.py"))
NETWORKS = ("fuzz_norm", "fuzz_drop", "fuzz_frozen", "fuzz_types")
FOLDERS = ROOT / "build" / "fuzzing"
WORDS = ("cat", "dog", "bird", "lorry")


def folder_of(name: str, domains: Sequence[str]) -> str:
    """Write images below domains, parts and classes, unless they are there; return the folder."""
    root, random = FOLDERS / name, np.random.default_rng(0)
    for domain in domains:
        for part, count in (("train", 34), ("test", 10)):
            for label, word in enumerate(WORDS):
                folder = root / domain / part / word
                folder.mkdir(parents=True, exist_ok=True)
                for number in range(count):
                    values = random.integers(0, 120, (8, 8, 3))
                    values[2 * label : 2 * label + 2] += 90 + 10 * len(domain)
                    path = folder / f"{number}.png"
                    if not path.exists():
                        Image.fromarray(values.astype(np.uint8)).save(path)
    return str(root)


def volumes() -> str:
    """Write volumes of two sites, of which the bright voxels are segmented; return the folder."""
    root, random = FOLDERS / "volumes", np.random.default_rng(0)
    for site, number in product(("one", "two"), range(8)):
        x, y, _ = np.indices((16, 16, 6))
        mask = (x > 1) & (x < 8 + number % 3) & (y < 6)
        voxels = random.integers(0, 100, mask.shape) + 150 * mask
        for name, values in ((f"{number}", voxels), (f"{number}_segmentation", mask)):
            path = root / site / f"{name}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                nibabel.Nifti1Image(values.astype(np.float32), np.eye(4)).to_filename(path)
    return str(root)


FOLDER = {"source": "image_folder", "root": folder_of("images", ("",))}
DOMAINS = {"source": "domain_folder", "root": folder_of("domains", ("pen", "photo"))}
CLIP = {"image_size": 32}
SCOPE = Scope(
    data=(DIGITS, DIGITS, SHAPES, FOLDER, {**DOMAINS, "image_size": 8}),
    clip_data=(SMALL_CLIP, {**FOLDER, **CLIP}, {**DOMAINS, **CLIP}),
    networks=("mlp", "mlp", "cnn2", "cnn3", "digits", "unet_tiny", *NETWORKS),
    plugins=tuple(Plugin(**plugin) for plugin in with_read_plugins({}, (), [PLUGIN])["plugins"]),
)
VOLUMES = {"source": "nifti_folder", "root": volumes(), "image_size": 16, "samples": None}
DENSE = Scope(
    methods=[entry.name for entry in algorithms.entries() if entry.dense],
    data=(SHAPES, VOLUMES),
    networks=("unet_tiny",),
)
DIVERGED = ("NaN", "nan", "infinity", "inf", "not finite", "became")
"""Words of the errors of a training that diverges, which a drawn learning rate may cause."""


class Diverged(Exception):
    """The numbers of a run became infinite."""


@dataclass
class Played:
    """A finished run, and what its session held at the end.

    Attributes:
        assembly: its parts.
        run: its records.
        traces: the last round, with all states.
        folder: its files.
    """

    assembly: Assembly
    run: Run
    traces: list[Trace]
    folder: Path = ROOT

    @property
    def states(self) -> Mapping[str, Tensor]:
        return self.traces[-1].tensors


def play(
    experiment: Experiment,
    folder: Path,
    executor: type[SerialExecutor] = SerialExecutor,
    until: int | None = None,
) -> Played:
    """Run an experiment in this process, or go on with it; return its records and last states.

    Args:
        experiment: the experiment.
        folder: the run's folder.
        executor: runs the clients.
        until: the last round; None for all.
    """
    session = Session(experiment, folder, partial(executor, device=CPU))
    traces = []
    rounds = session.rounds()
    try:
        for done in rounds:
            if done.round in (until, experiment.rounds):
                states = dict(session._executor.states.items())
                traces.append(Trace.of(done, session._federation.snapshot, states))
            if done.round == until:
                break
        rounds.close()
    except FedrayError as error:
        if any(word in str(error) for word in DIVERGED):
            raise Diverged(one_line(error)) from error
        raise
    return Played(session._assembly, RunFolder(folder).read(), traces, folder)


# --- (b) the records -----------------------------------------------------------------------------


def records(drawn: Drawn, played: Played) -> Iterator[str]:
    e, run = drawn.experiment, played.run
    draws, join = reference.Draws(e.seed), e.join
    if [done.round for done in run.rounds] != list(range(e.rounds + 1)):
        yield f"the rounds are {[done.round for done in run.rounds]}"
    best = final = None
    name = "local_accuracy" if e.report.select == "test" else "validation/local_accuracy"
    for done in run.rounds:
        r, values = done.round, done.metrics
        joined = e.data.clients - (join.clients if r < join.round else 0)
        count = max(1, round(e.participation * joined)) if r else 0
        cohort = list(range(joined))[:count]
        if 0 < count < joined:
            random = draws.numpy("participation", r)
            cohort = sorted(random.choice(joined, size=count, replace=False).tolist())
        if list(done.participants) != cohort:
            yield f"round {r} has the participants {list(done.participants)}, not {cohort}"
        share = e.faults.drop
        gone = [
            i
            for i in range(e.data.clients)
            if r and share and draws.numpy("fault_drop", r, i).random() < share
        ]
        absent = set(done.absent)
        if not absent <= set(gone) or (done.down.total_bytes and set(cohort) & set(gone) - absent):
            yield f"round {r} lacks clients {sorted(absent)}, not {gone}"
        tested = r == e.rounds or (e.eval_every and r % e.eval_every == 0)
        if bool(tested) != bool(done.per_client):
            yield f"round {r} is {'not ' if tested else ''}tested"
        everyone = [a for i, a in done.per_client.items() if i < joined]  # that has test images
        if bool(everyone) != ("local_accuracy" in values):
            yield f"round {r} is tested on {len(everyone)} clients"
        if everyone:
            final = r
            if r and name in values and (best is None or values[name] > best[1]):
                best = r, values[name]
            if abs(np.mean(everyone) - values["local_accuracy"]) > 1e-12:
                yield f"round {r}: local_accuracy is not the mean of the clients'"
        for key, value in values.items():
            if not math.isfinite(value) or ("accuracy" in key and not 0 <= value <= 1 + 1e-9):
                yield f"round {r}: {key} is {value}"
        if "accuracy_hm" in values:
            b, n = values["accuracy_base"], values["accuracy_novel"]
            if abs(values["accuracy_hm"] * (b + n) - 2 * b * n) > 1e-12:
                yield f"round {r}: accuracy_hm is {values['accuracy_hm']}, of {b} and {n}"
        others = ("dice_in_", "dice_background")  # of domains, and of no class that is meant
        dice = [v for k, v in values.items() if k.startswith("dice_") and not k.startswith(others)]
        if "dice" in values and abs(np.mean(dice) - values["dice"]) > 1e-12:
            yield f"round {r}: dice is {values['dice']}, of classes {dice}"
    if (run.best.round if run.best else None) != (best[0] if best else None):
        yield f"the best round is {run.best}, not {best}"
    if run.final is None or run.final.round != final:
        yield f"the final round is {run.final}, not {final}"
    yield from best_rounds(e, run)
    yield from spent(e, played)
    yield from roles(e, played.assembly)
    yield from hashes(played.assembly.data)
    yield from masks(e, played.assembly.data.images)


def best_rounds(e: Experiment, run: Run) -> Iterator[str]:
    """Look at the rounds that are best by a metric, on the images that select."""
    prefix = "" if e.report.select == "test" else "validation/"
    for name in ("local_accuracy", "local_macro_f1"):
        rounds = [done for done in run.rounds if done.round and prefix + name in done.metrics]
        best = max(rounds, key=lambda done: done.metrics[prefix + name], default=None)
        if best is not None and run.best_round(name) != best.round:
            yield f"the best round of {name} is {run.best_round(name)}, not {best.round}"


def spent(e: Experiment, played: Played) -> Iterator[str]:
    """Look whether epsilon follows from the clients whose uploads had noise."""
    p, past = e.privacy, list[tuple[int, float, Sequence[int]]]()
    for done in played.run.rounds:
        joined = e.data.clients - (e.join.clients if done.round < e.join.round else 0)
        for clients in done.noised:
            is_drawn = {*clients} <= {*done.participants}
            share = len(done.participants) / joined if is_drawn else 1.0
            past.append((done.round, share, clients))
        if "epsilon" not in done.metrics:
            continue
        times = Counter(i for _, _, clients in past for i in clients)
        known = reference.epsilon_of(p.noise_multiplier, max(times.values(), default=0), p.delta)
        found = done.metrics["epsilon_known_participants"]
        if abs(found - known) > 1e-3 * known + 1e-6:
            yield f"round {done.round}: epsilon_known_participants is {found}, not {known}"
        steps = Counter((r, share) for r, share, _ in past)
        rounds = [(share, k) for (_, share), k in steps.items()]
        whole = reference.sampled_epsilon(p.noise_multiplier, rounds, p.delta)
        total, bound = done.metrics["epsilon"], known if p.mode == "local" else min(known, whole)
        if not bound / 2 <= total <= bound * 1.001 + 1e-6:
            yield f"round {done.round}: epsilon is {total}, where {bound} bounds it"


def hashes(data: Any) -> Iterator[str]:
    """Look whether other images, or other roles of them, have another hash."""
    for name in ("images", "labels"):
        values = getattr(data.images, name)
        other = dataclasses.replace(data.images, sha256="", **{name: values[::-1]})
        if other.sha256 == data.images.sha256 and not np.array_equal(values, values[::-1]):
            yield f"other {name} have the same hash"
    for name in ("train", "test", "validation"):
        parts = getattr(data, name) or ()
        other = dataclasses.replace(data, **{name: tuple(part[1:] for part in parts) or None})
        if any(map(len, parts)) and other.sha256 == data.sha256:
            yield f"other images of {name} have the same hash"


def masks(e: Experiment, images: ImageSet) -> Iterator[str]:
    """Look whether what is segmented of a volume is what is bright."""
    is_volume = e.data.source.name == "nifti_folder"
    if is_volume and not np.array_equal(images.images[:, 0] > 127, images.masks == 1):
        yield "masks do not lie on what is bright"


def roles(e: Experiment, assembly: Assembly) -> Iterator[str]:
    """Look at who has which images in which phase."""
    data, origin = assembly.data, np.asarray(assembly.data.images.origin)
    labels, few_shot = np.asarray(data.images.labels), e.data.partition.name == "dominant_class"
    test, other = set[int](), set[int]()
    keeps_tests = getattr(e.data.evolution.params, "tests", "kept") == "kept"
    for first, phase in data.phases:
        where = f"phase of round {first}"
        parts = [phase.train, phase.test, *([phase.validation] if phase.validation else [])]
        for i, of_client in enumerate(zip(*parts, strict=True)):
            whole = np.concatenate(of_client)
            if len(np.unique(whole)) < len(whole):
                yield f"{where}: an image of client {i} has two roles"
            if not len(of_client[0]):
                yield f"{where}: client {i} trains on nothing"
        tests, trains = (np.unique(np.concatenate(p)) for p in (phase.test, phase.train))
        held = np.unique(np.concatenate(phase.validation)) if phase.validation else tests[:0]
        if not few_shot:
            for kind, part in zip(("train", "test", "validation"), parts, strict=False):
                whole = np.concatenate(part)
                if len(np.unique(whole)) < len(whole):
                    yield f"{where}: two clients share an image of {kind}"
        if np.intersect1d(tests, np.concatenate([trains, held])).size:
            yield f"{where}: a client's test image is another's training or validation image"
        if np.intersect1d(trains, held).size:
            yield f"{where}: a validation image is another client's training image"
        test |= set(tests.tolist())
        other |= set(trains.tolist())
        if e.data.test == "official" and (
            (origin[trains] != TRAIN).any() or (origin[tests] != TEST).any()
        ):
            yield f"{where}: official test images are mixed with others"
        if data.base is not None and (labels[trains] >= data.base).any():
            yield f"{where}: a client trains on a novel class"
        yield from bounds(e, where, phase, labels)
        yield from shared_sets(e, where, phase, tests)
        if data.public is not None and data.public.is_labelled != (data.public.labels >= 0).all():
            yield "public labels are there, and may not be read, or the other way round"
        if data.public is not None and data.public.images is data.images:
            taken = np.concatenate([trains, tests, held])
            if np.intersect1d(data.public.index, taken).size:
                yield f"{where}: a public image is a client's, too"
    if keeps_tests and test & other:
        yield f"{len(test & other)} test images of one phase are training images of another"
    if keeps_tests and data.later and data.validation is not None:
        held = set(np.concatenate(data.validation).tolist())
        if held & other:
            yield f"{len(held & other)} validation images are training images of a phase"


def shared_sets(e: Experiment, where: str, phase: Any, tests: np.ndarray) -> Iterator[str]:
    """Look at the images that all models are tested on."""
    domains, labels = phase.images.domains, np.asarray(phase.images.labels)
    for name, shared in phase.eval_sets.items():
        if name == "everybody":
            expected = tests
        elif name.startswith("domain:"):
            expected = tests[domains.ids[tests] == domains.names.index(name[7:])]
        else:
            expected = shared.index[np.isin(labels[shared.index], shared.classes)]
        if e.data.partition.name != "dominant_class" and not np.array_equal(shared.index, expected):
            yield f"{where}: {name} holds other images than the clients' tests"


def bounds(e: Experiment, where: str, phase: Any, labels: np.ndarray) -> Iterator[str]:
    """Look at what the partition promises of the first phase."""
    if where != "phase of round 0" or e.data.test == "official":
        return
    p, held = e.data.partition, phase.validation or [()] * len(phase.train)
    whole = [
        np.concatenate(parts).astype(int)
        for parts in zip(phase.train, phase.test, held, strict=True)
    ]
    counts = np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in whole])
    classes, sizes, rest = (counts > 0).sum(1), counts.sum(1), counts.cumsum(1) - counts
    if e.data.shots is not None and counts.sum(0).max() > e.data.shots:
        yield f"there are {counts.sum(0).max()} shots of a class"
    if p.name == "dirichlet" and p.params.alpha >= 100:  # six deviations of a share
        gap = np.abs(counts - counts.mean(0)).max(0) - 0.6 * counts.sum(0) / len(counts)
        if (gap > 1).any():
            yield f"alpha of {p.params.alpha} gives counts {counts.tolist()}"
    if p.name == "fedtsp_dirichlet" and p.params.variant == "official":
        full = rest >= sizes.sum() / len(counts)
        if (counts[full] > 0).any():
            yield f"a client that holds its share gets more images: {counts.tolist()}"
    if p.name == "fedtsp_dirichlet" and p.params.variant == "exact" and np.ptp(sizes) > 1:
        yield f"sizes are {sizes.tolist()}"
    if p.name == "dirichlet" and min(map(len, whole)) < p.params.min_samples:
        yield f"a client has {min(map(len, whole))} images, fewer than min_samples"
    if p.name == "classes" and max(classes) > p.params.classes_per_client:
        yield f"a client has {max(classes)} classes"
    if p.name == "classes" and p.params.equal_sizes and e.data.shots is None and np.ptp(sizes):
        yield f"sizes are {sizes.tolist()}"
    if p.name == "iid" and max(map(len, whole)) - min(map(len, whole)) > len(set(labels.tolist())):
        yield f"iid sizes are {[*map(len, whole)]}"


def kept(drawn: Drawn, played: Played) -> Iterator[str]:
    """Test saved models again; rounding may decide one image, because batches are others."""
    is_left_out = played.assembly.data.base is not None or played.assembly.models.dense
    if drawn.experiment.keep.models == "none" or is_left_out:
        return
    models = fedray.load(played.folder).models()
    done = played.run.rounds[models.round]
    data = played.assembly.data.at(models.round)
    for client, accuracy in done.per_client.items():
        index = data.test[client]
        found = models.model(client).predict(torch.from_numpy(data.images.images[index]))
        truth = torch.from_numpy(np.asarray(data.images.labels)[index])
        value = float((found.labels.cpu() == truth).double().mean())
        if abs(value - accuracy) > 1.01 / len(index):
            yield f"the model of client {client} in round {done.round} has {value}, not {accuracy}"


# --- (d) stopped and continued -------------------------------------------------------------------


def resume(drawn: Drawn, played: Played) -> Iterator[str]:
    e, random = drawn.experiment, Random(drawn.seed)
    until = random.randrange(e.rounds)
    with TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder)
        play(e, path, SerialExecutor, until)
        update = {"workers": e.workers + 1, "cpus": 0.5, "checkpoint_every": 1}
        second = play(e.model_copy(update=update), path, Reversed)
    yield from difference(played, second)


def difference(first: Played, second: Played) -> Iterator[str]:
    """Compare records and last states of two runs bit for bit."""
    try:
        compare_traces(first.traces, second.traces)
    except Violation as error:
        yield str(error)
    best = [run.best and run.best.round for run in (first.run, second.run)]
    if best[0] != best[1]:
        yield f"the best round is {best[0]}, not {best[1]}"
    rounds = len(first.run.rounds), len(second.run.rounds)
    if rounds[0] != rounds[1]:
        yield f"{rounds[0]} rounds, not {rounds[1]}"
    for one, two in zip(first.run.rounds, second.run.rounds, strict=False):
        kept = [dataclasses.replace(r, seconds=0.0, client_seconds=None) for r in (one, two)]
        if kept[0] != kept[1]:
            names = [f.name for f in dataclasses.fields(kept[0])]
            wrong = [n for n in names if getattr(kept[0], n) != getattr(kept[1], n)]
            yield f"round {one.round} has other {', '.join(wrong)}"


def processes(drawn: Drawn) -> Iterator[str]:
    """Compare a run on Ray that is killed and goes on in another process with one that is not."""
    from shrinking import write_case

    with TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder)
        case = write_case(drawn, path, "")
        command = [sys.executable, "-m", "fedray.run", str(case), "--no-track", "--executor"]
        whole, killed = path / "whole", path / "killed"
        done = _run([*command, "serial", "--out", str(whole)])
        if done.returncode:
            yield f"exit {done.returncode}: {done.stderr[-300:]}"
            return
        with subprocess.Popen([*command, "ray", "--out", str(killed)], **QUIETLY) as process:
            while process.poll() is None and not _lines(killed):
                time.sleep(0.05)
            process.kill()
        own = ["--plugin", PLUGIN] if drawn.tree["model"].get("group") in NETWORKS else []
        again = [*command[:3], "--resume", str(killed), "--no-track", "--executor", "serial"]
        done = _run([*again, *own])
        if done.returncode:
            yield f"exit {done.returncode} after a kill: {done.stderr[-300:]}"
            return
        first, second = (Played(None, RunFolder(f).read(), []) for f in (whole, killed))
    yield from difference(first, second)


QUIETLY: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def _lines(folder: Path) -> int:
    file = folder / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


# --- (e) the reference ---------------------------------------------------------------------------


def given(assembly: Assembly) -> reference.Given:
    """Return what the reference takes of a run."""
    e, data, models = assembly.experiment, assembly.data, assembly.models

    def index(sets: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: one.index for name, one in sets.items()}

    phases = [
        (
            first,
            reference.Split(
                d.train, d.test, d.validation, index(d.eval_sets), index(d.validation_sets)
            ),
        )
        for first, d in data.phases
    ]
    domains, public = data.images.domains, data.public
    kinds, text = models.architectures, None
    encode, token_width = None, 0
    if assembly.algorithm.requires.text:
        tower = assembly.server(CPU).tower
        text = tower.frozen_prototypes(of_unit_length=True)
        token_width = tower.token_width

        def encode(prompts: Tensor | None, past: bool, classes: Tensor | None) -> Tensor:
            if prompts is None:
                return tower.frozen_prototypes()
            return tower.prototypes(prompts, past, classes)

    return reference.Given(
        keys=e.tree(),
        images=data.images.images,
        labels=np.asarray(data.images.labels),
        classes=len(data.class_names),
        width=assembly.setting.feature_dim,
        phases=phases,
        domains=None if domains is None else [domains.names[n] for n in domains.ids],
        public=None if public is None else (public.images.images, public.labels, public.index),
        architectures=kinds,
        bodies={**reference.BODIES, **{n: architectures.get(n).make for n in NETWORKS}},
        initial=lambda client: dict(models.initial(kinds[client], client)),
        text=text,
        encode=encode,
        token_width=token_width,
        inputs=prompt_inputs(assembly) if assembly.algorithm.requires.prompts else None,
    )


class Prompts(torch.nn.Module):
    """A prompted CLIP as a network from tensors to features and logits."""

    def __init__(self, model: Any, kind: Any) -> None:
        super().__init__()
        for name, module in model.named_children():
            self.add_module(name, module)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "kind", kind)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(self.kind(x))
        object.__setattr__(self, "text", output.text)
        return output.features, output.logits


def prompt_inputs(assembly: Assembly) -> tuple[Tensor, Callable[[str], torch.nn.Module]]:
    """Return what a prompted CLIP reads of each image, and the CLIP of an architecture."""
    used = assembly.data.used
    samples = assembly.models.samples(CPU)(used)
    read = samples.kind.of(samples.tensors(CPU)[0]).values
    values = torch.zeros(len(assembly.data.images), *read.shape[1:])
    values[torch.from_numpy(used)] = read
    return values, lambda architecture: Prompts(assembly.models.empty(architecture), samples.kind)


def is_referenced(e: Experiment, assembly: Assembly) -> bool:
    """Return whether the reference covers an experiment."""
    is_prompted = assembly.algorithm.requires.prompts
    return (
        e.algorithm.name in reference.METHODS
        and ({*assembly.models.architectures} <= {*reference.BODIES, *NETWORKS} or is_prompted)
        and assembly.data.base is None
        and e.precision == "float32"
        and (e.stacked == 1 or not (is_prompted or e.model.group == "fuzz_drop"))
        and (e.data.augment.name == "none" or not is_prompted)
        and e.data.augment.name in ("none", *reference.AUGMENTATIONS)
        and not assembly.models.dense
    )


def is_off(value: float, others: Sequence[float], double: float) -> bool:
    """Return whether a number differs more from the double than rounding explains."""
    if math.isnan(value) or math.isnan(double):
        return math.isnan(value) != math.isnan(double)
    room = max(abs(other - double) for other in others)
    return abs(value - double) > 20 * room + 1e-5 * max(1.0, abs(double))


NUDGES = range(1, 9)
"""Runs in single precision from slightly other weights, which show how far rounding may go."""


def check_reference(drawn: Drawn, played: Played) -> Iterator[str]:
    method = reference.METHODS[drawn.experiment.algorithm.name]

    def run(dtype: torch.dtype, nudge: int = 0) -> reference.Loop:
        with torch.random.fork_rng(devices=[]):
            loop = method(given(played.assembly), dtype, nudge)
            loop.run()
        return loop

    double, others = run(torch.float64), [run(torch.float32)]
    wrong = [*compared(played, others, double)]
    for nudge in NUDGES if wrong else ():
        others.append(run(torch.float32, nudge))
        if not any(compared(played, others, double)):
            return
    yield from wrong


def compared(
    played: Played, others: Sequence[reference.Loop], double: reference.Loop
) -> Iterator[str]:
    """Compare a run with the reference in double precision, within how far other loops are apart.

    Args:
        played: the run.
        others: the loop in single precision, from the same and from slightly other weights.
        double: the loop in double precision.
    """
    for done, two, *ones in zip(
        played.run.rounds, double.records, *[other.records for other in others], strict=True
    ):
        one, where = ones[0], f"round {done.round}"
        for name, sent, bytes_ in (("up", done.up, one.up), ("down", done.down, one.down)):
            if dict(sent.bytes) != dict(sorted(bytes_.items())):
                yield f"{where}: {name} has {dict(sent.bytes)} bytes, not {bytes_}"
        steps = done.client_work.steps if done.client_work else 0
        if steps != one.steps:
            yield f"{where}: {steps} steps of clients, not {one.steps}"
        names = {n for n in done.metrics if n in one.metrics or not is_foreign(n)}
        wrong = sorted(names ^ one.metrics.keys())
        if wrong:
            yield f"{where}: {wrong[0]} is measured on one side only"
        close = any(is_close_call(one, two) for one in ones)
        for name in sorted(names & one.metrics.keys()):
            value, exact = done.metrics[name], two.metrics[name]
            found = [one.metrics[name] for one in ones]
            if not (close and "loss" not in name) and is_off(value, found, exact):
                yield f"{where}: {name} is {value!r}, not {found[0]!r} ({exact!r})"
        if not close and dict(done.per_client) not in [one.per_client for one in ones]:
            yield f"{where}: accuracies of clients {dict(done.per_client)}, not {one.per_client}"
    yield from check_states(played, others, double)


def is_foreign(name: str) -> bool:
    """Return whether the reference leaves a metric out: a method's own analysis."""
    return not name.removeprefix("validation/").startswith(SHARED)


SHARED = (
    "local_", "accuracy_", "global_", "new_", "earlier_", "client_accuracy", "everyone_",
    "train_loss", "learning_rate", "finetuned_",
)  # fmt: skip
"""Beginnings of the metrics that every method has."""


def is_close_call(one: reference.Record, two: reference.Record) -> bool:
    """Return whether rounding may decide an image's class, so that shares of images may differ."""
    for a, b in zip(one.logits, two.logits, strict=True):
        if a.numel() and a.shape[1] > 1:
            noise = 40 * (a - b).abs().amax() + 2e-5 * b.abs().amax().clamp_min(1)
            ordered = b.sort(dim=1).values
            if bool(ordered.diff(dim=1).amin() <= noise):
                return True
    return False


def check_states(
    played: Played, others: Sequence[reference.Loop], double: reference.Loop
) -> Iterator[str]:
    """Compare the weights at the end."""
    finals, second, states = [other.final() for other in others], double.final(), played.states
    for owner, values in second.items():
        for name, value in values.items():
            kind = owner.removeprefix("server ")
            places = {
                f"{owner}/model/{name}",
                f"{owner}/{name}",
                f"{owner}/head/{name.removeprefix('head.')}",
                f"server/models/{kind}/{name}",
            }
            found = next((states[p] for p in places if p in states), None)
            if found is None:
                continue
            exact = value.double()
            gap = (found.double() - exact).abs()
            room = max((f[owner][name].double() - exact).abs().amax() for f in finals)
            scale = 20 * room + 1e-5 * exact.abs().amax().clamp_min(1)
            if not bool((gap <= scale).all()):
                most = f"{float(gap.max()):.3g}, allowed {float(scale):.3g}"
                yield f"{owner}: {name} differs by {most}"


# --- (f) relations -------------------------------------------------------------------------------

SAME: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "fedprox": ({"mu": 0.0}, "fedavg"),
    "moon": ({"mu": 0.0}, "fedavg"),
    "fedlc": ({"tau": 0.0}, "fedavg"),
    "fedproto_global": ({"mu": 0.0}, "fedavg"),
    "fedglcl_fedprox": ({"mu": 0.0}, "fedglcl"),
    "fedglcl_moon": ({"mu": 0.0}, "fedglcl"),
    "promptfl_fedprox": ({"mu": 0.0}, "promptfl"),
    "fedproto": ({"lambda": 0.0}, "local"),
    "fedtgp": ({"lambda": 0.0}, "local"),
    "fedtsp": ({"lambda": 0.0}, "local"),
    "feddistill": ({"gamma": 0.0}, "local"),
    "kgcoop": ({"lambda": 0.0}, "promptfl"),
}
"""Methods that are another one if a weight is 0."""


def same_method(drawn: Drawn) -> Iterator[str]:
    """Compare a method with the one that it is when its own term has no weight."""
    name = drawn.experiment.algorithm.name
    if name not in SAME or drawn.experiment.privacy.mode != "none":
        return
    zero, other = SAME[name]
    params = {k: v for k, v in drawn.tree["algorithm"].items() if k != "name"}
    shared = {
        k: v for k, v in params.items() if k in ("weights", "length", "words", "tau", "denominator")
    }
    shared = {k: v for k, v in shared.items() if not (k == "tau" and other == "fedavg")}
    if name == "kgcoop":
        shared |= {"length": params.get("length", 4), "words": params.get("words", "a photo of a")}
    values = []
    for algorithm in ({"name": name, **params, **zero}, {"name": other, **shared}):
        tree = {
            **deepcopy(drawn.tree),
            "algorithm": algorithm,
            "stacked": 1,
        }  # else not bit for bit
        tree["model"] = (
            {**tree["model"], "feature_dim": drawn.experiment.model.feature_dim or 256}
            if "text" in tree
            else tree["model"]
        )
        try:
            experiment = accepted(tree, SCOPE)
        except UserError:
            return
        with TemporaryDirectory(prefix="fuzz-") as folder:
            values.append(play(experiment, Path(folder)).run)
    for one, two in zip(*(run.rounds for run in values), strict=True):
        for metric in one.metrics.keys() & two.metrics.keys():
            if one.metrics[metric] != two.metrics[metric]:
                text = f"{metric} is {one.metrics[metric]}, {other}'s {two.metrics[metric]}"
                yield f"round {one.round}: {name} with {zero}: {text}"
                return


def unset_key(tree: dict[str, Any], key: str) -> None:
    """Remove a dotted key of a tree, if it is there."""
    *above, last = key.split(".")
    for name in above:
        tree = tree.get(name, {})
    tree.pop(last, None)


def relations(drawn: Drawn, played: Played) -> Iterator[str]:
    yield from same_method(drawn)
    for relation, other in relations_of(drawn, SCOPE, drawn.seed, 1):
        is_whole = relation.compares == "all"
        try:  # the states of the last round follow from all rounds before
            check_relation(
                played.traces,
                relation._replace(compares="last" if is_whole else relation.compares),
                other,
            )
        except Violation as error:
            yield f"{relation.name}: {error}"


# --- (c) the effect of a key ---------------------------------------------------------------------


def effect(drawn: Drawn, played: Played) -> tuple[str, bool] | None:
    """Return a drawn key and whether leaving it out changes a number; None if it cannot be."""
    random = Random(drawn.seed)
    for key in random.sample([*drawn.chosen], len(drawn.chosen)):
        tree = deepcopy(drawn.tree)
        unset_key(tree, key)
        try:
            other = accepted(tree, SCOPE)
        except UserError:
            continue
        if other.reproducibility_key() == drawn.experiment.reproducibility_key():
            continue
        with TemporaryDirectory(prefix="fuzz-") as folder:
            try:
                second = play(other, Path(folder))
            except Diverged:
                return key, True
        return key, next(difference(played, second), None) is not None
    return None


Oracle = Callable[[Drawn, Played], Iterator[str]]
ORACLES: Mapping[str, Oracle] = {
    "records": records,
    "kept": kept,
    "resume": resume,
    "reference": check_reference,
    "relations": relations,
}
