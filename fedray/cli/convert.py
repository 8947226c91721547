"""Bring results of the second edition into the form of the third: `fedray convert DIR`.

The second edition kept the rounds in result.json, and a run's identity held the paths of files and
the label `scale`. The command rewrites the folders of runs, and renames those of tables after their
new identity, so that the same table made again finds them. Checkpoints are left alone: a converted
run is read, reported and used, but not resumed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedray.command import CommandLine, add_trust, as_path, run_command
from fedray.config import (
    Experiment,
    content_of,
    files_of,
    load_experiment,
    read_mapping,
)
from fedray.errors import UserError, named
from fedray.files import write_json
from fedray.records import (
    RESULT,
    Costs,
    EarlierEnvironment,
    Environment,
    Event,
    Metric,
    Round,
    Run,
    RunFolder,
    RunInfo,
    Traffic,
    parse_json,
    read_checked,
    read_json,
    sealed,
    unsealed,
)
from fedray.tables.plan import run_key

PROG = "fedray convert"
_SCHEMA = 4
"""Of the result.json that the second edition wrote."""


def parser(prog: str = PROG) -> CommandLine:
    """Return the command line of `fedray convert`."""
    cli = CommandLine(
        prog=prog,
        description="Bring the runs of the second edition of fedray in or below the given folders "
        "into the form of the third. Their files are replaced; converted runs cannot be resumed. "
        "Make a table again to have its page: it takes the converted runs.",
    )
    cli.add_argument("folders", nargs="+", type=as_path, metavar="DIR")
    add_trust(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; return the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    converted = 0
    for folder in args.folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass that of a run, a sweep or a table")
        for path, what in convert(folder):
            print(f"{path}: {what}", flush=True)
            converted += 1
    print(f"{converted} converted" if converted else "there is nothing to convert")
    return 0


def convert(folder: Path) -> Iterator[tuple[Path, str]]:
    """Convert the runs in or below a folder, and yield each folder with what was done there.

    Raises:
        UserError: if a file is damaged, or a file that an experiment names is missing.
    """
    for path in sorted(folder.rglob(RESULT)):
        tree = read_json(path)
        if not isinstance(tree, dict) or "rounds" not in tree:
            continue
        try:
            yield _convert_run(path, tree)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} cannot be converted: {named(error)}") from None


def _convert_run(path: Path, tree: dict[str, Any]) -> tuple[Path, str]:
    folder = RunFolder(path.parent)
    if tree.get("schema") != _SCHEMA:
        raise UserError(
            f"{path} has schema {tree.get('schema', 1)}; only {_SCHEMA}, the second edition's, can "
            "be converted"
        )
    head = unsealed({key: value for key, value in tree.items() if key != "rounds"})
    rounds = [_round(each) for each in tree["rounds"]]
    costs = Costs(head["wall_seconds"], head["startup_seconds"], head["peak_rss_bytes"])
    if folder.rounds_file.is_file():
        lines = folder.rounds_file.read_bytes().split(b"\n")[:-1]
        trees = [unsealed(parse_json(line)) for line in lines]
        rounds = [_round(each) for each in trees]
        costs = Costs(**trees[-1]["costs"]) if trees else costs
    experiment = _experiment(folder)
    info = _info(head, experiment)
    ended = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    started = folder.partition if folder.partition.is_file() else path
    begun = datetime.fromtimestamp(started.stat().st_mtime, UTC)
    if folder.matrices.is_file():
        matrices = read_checked(folder.matrices)
        if "last" not in matrices:
            last = {"round": matrices.pop("round"), "matrices": matrices.pop("matrices")}
            write_json(folder.matrices, sealed({"last": last, "first": last, **matrices}))
    run = Run(info, rounds, costs, min(begun, ended))
    folder.write(run)
    place, target = path.parent, path.parent.with_name(run_key(experiment))
    if place.parts[-3:-1] == ("tables", "runs") and not target.exists():
        place = place.rename(target)  # a table finds a run by its identity
    resumes = "" if run.is_finished else "; the run is not finished and cannot be resumed"
    return place, f"{len(rounds)} rounds{resumes}"


def _experiment(folder: RunFolder) -> Experiment:
    """Return a run's experiment, wherever its data are, with the files that it names.

    Raises:
        UserError: if one of these files is missing: its content is part of the identity.
    """
    tree = read_mapping(folder.config)
    data = dict(tree.get("data", {}))
    root = data.pop("root", None)
    experiment = load_experiment({**tree, "data": data})
    for key, path in files_of(experiment).items():
        if not content_of(path):
            raise UserError(
                f"{folder.path}: {key}={path} is missing; put it there, because its content is "
                "part of the run's identity"
            )
    data_keys = experiment.data.model_copy(update={"root": root})
    return experiment.model_copy(update={"data": data_keys})


def _info(head: Mapping[str, Any], experiment: Experiment) -> RunInfo:
    same = ("name", "scale", "algorithm", "seed", "partition_sha256", "data_sha256", "privacy")
    earlier = [
        EarlierEnvironment(each["until_round"], Environment(each["versions"]))
        for each in head.get("earlier_versions", ())
    ]
    return RunInfo(
        **{key: head[key] for key in same},
        config=experiment.record(),
        identity=experiment.identity(head["data_sha256"] or ""),
        environment=Environment(head["versions"], threads=experiment.threads),
        files_sha256={key: content_of(path) for key, path in files_of(experiment).items()},
        architectures=tuple(head["architectures"]),
        metrics=tuple(Metric(name, **of) for name, of in head["metrics"].items()),
        retested=head.get("retested"),
        earlier_environments=tuple(earlier),
    )


def _round(tree: Mapping[str, Any]) -> Round:
    metrics = dict(tree["metrics"])
    per_client = metrics.pop("per_client", {})
    return Round(
        round=tree["round"],
        seconds=tree["seconds"],
        metrics=metrics,
        per_client={int(client): value for client, value in per_client.items()},
        up=Traffic(tree["up_params_by_kind"], tree["up_bytes_by_kind"]),
        down=Traffic(tree["down_params_by_kind"], tree["down_bytes_by_kind"]),
        participants=tree["participants"],
        events=[Event(each["client"], each["what"]) for each in tree["events"]],
        client_seconds=tree.get("client_seconds"),
    )
