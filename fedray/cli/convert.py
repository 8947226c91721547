"""Bring results of the second edition into the form of the third: `fedray convert DIR`.

The second edition kept the rounds in result.json, and a run's identity held the paths of files and
the label `scale`. The command rewrites the folders of runs and the table.json of tables, and
renames the folders of a table's runs after their new identity. Checkpoints are left alone: a
converted run is read, reported and used, but not resumed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fedray.command import PATH, Command, trust
from fedray.config import (
    EXECUTION_KEYS,
    Experiment,
    Tree,
    content_of,
    dump_yaml,
    files_of,
    load_experiment,
    read_mapping,
    validate,
)
from fedray.errors import UserError, named
from fedray.files import write_atomic, write_json
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
    write_run_list,
)
from fedray.studies.cell import Cell
from fedray.studies.plan import StudyPlan, run_key
from fedray.studies.store import DATA, FORMAT, RUNS, name_of
from fedray.studies.study import FILE

_SCHEMA, _TABLE = 4, 2
"""The formats of result.json and table.json that the second edition wrote."""


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@trust
def command(folders: Sequence[Path]) -> None:
    """Bring results of the second edition into the form of the third.

    Converts runs, and tables with their runs, in or below FOLDERS. Their files are replaced;
    converted runs cannot be resumed.
    """
    converted = 0
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass that of a run, a sweep or a table")
        for path, what in convert(folder):
            print(f"{path}: {what}", flush=True)
            converted += 1
    print(f"{converted} converted" if converted else "there is nothing to convert")


def convert(folder: Path) -> Iterator[tuple[Path, str]]:
    """Convert what is in or below a folder, and yield each place with what was done there.

    Raises:
        UserError: if a file is damaged, or a file that an experiment names is missing.
    """
    for path in sorted(folder.rglob(RESULT)):
        if _is_old(path, "rounds"):
            yield _named(path, _convert_run)
    for path in sorted([*folder.rglob(DATA), *folder.rglob("from-*.json")]):
        if _is_old(path, "format"):
            yield _named(path, _convert_table)


def _is_old(path: Path, key: str) -> bool:
    tree = read_json(path)
    return isinstance(tree, dict) and key in tree and (key != "format" or tree[key] == _TABLE)


def _named(path: Path, work: Any) -> tuple[Path, str]:
    try:
        found: tuple[Path, str] = work(path)
        return found
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be converted: {named(error)}") from None


# --- runs -----------------------------------------------------------------------------------------


def _convert_run(path: Path) -> tuple[Path, str]:
    folder, tree = RunFolder(path.parent), read_json(path)
    if tree.get("schema") != _SCHEMA:
        raise UserError(
            f"{path} has schema {tree.get('schema', 1)}; only {_SCHEMA}, the second edition's, can "
            "be converted"
        )
    head = unsealed({key: value for key, value in tree.items() if key != "rounds"})
    rounds, costs = [_round(each) for each in tree["rounds"]], _costs(head)
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
        _convert_matrices(folder.matrices)
    run = Run(info, rounds, costs, min(begun, ended))
    folder.write(run)
    place = path.parent
    if place.parent.name == "runs" and place.parent.parent.name == "tables":
        place = _renamed(place, run_key(experiment))
    resumes = "" if run.is_finished else "; the run is not finished and cannot be resumed"
    return place, f"{len(rounds)} rounds{resumes}"


def _renamed(place: Path, name: str) -> Path:
    target = place.with_name(name)
    if place != target and not target.exists():
        place.rename(target)
        return target
    return place


def _experiment(folder: RunFolder) -> Experiment:
    """Return a run's experiment with the files that it names; its data may be elsewhere.

    Raises:
        UserError: if one of these files is missing: its content is part of the identity.
    """
    tree = read_mapping(folder.config)
    for section, key in (("faults", "reply_timeout_s"), ("data", "verified_since")):
        tree.get(section, {}).pop(key, None)  # keys of the second edition alone
    write_atomic(folder.config, dump_yaml(tree))
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


def _costs(head: Mapping[str, Any]) -> Costs:
    return Costs(head["wall_seconds"], head["startup_seconds"], head["peak_rss_bytes"])


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


def _convert_matrices(path: Path) -> None:
    tree = read_checked(path)
    if "last" in tree:
        return
    last = {"round": tree["round"], "matrices": tree["matrices"]}
    write_json(path, sealed({"last": last, "first": tree.get("first", last)}))


# --- tables ---------------------------------------------------------------------------------------


def _convert_table(path: Path) -> tuple[Path, str]:
    tree = read_checked(path)
    names, keys = _new_names(tree)
    lost = 0
    for run in tree.get(RUNS, ()):
        lost += run["name"] not in names
        run["name"] = names.get(run["name"], run["name"])
    for cell in tree["cells"]:
        for seed in cell["seeds"]:
            seed["run"] = keys.get(seed["run"], seed["run"])
    after = sealed({**tree, "format": FORMAT})
    if path.read_text(encoding="utf-8").count("\n") > 1:
        write_json(path, after)
    else:  # as `make docs` takes a table
        write_atomic(path, json.dumps(after, separators=(",", ":")) + "\n")
    if (book := path.with_name(FILE)).is_file():
        _convert_book(book, keys)
        store = Path(read_checked(book)["store"])
        seeds = [seed for cell in tree["cells"] for seed in cell["seeds"] if not seed["reason"]]
        write_run_list(path.parent, [store / seed["run"] for seed in seeds])
    unknown = f", {lost} of them are not of this plan and stay as they were" if lost else ""
    return path, f"{len(tree.get(RUNS, ()))} runs{unknown}"


def _convert_book(path: Path, keys: Mapping[str, str]) -> None:
    """Rename the runs in the state of a table's invocation."""
    tree = read_checked(path)
    for part in ("seconds", "failures"):
        tree[part] = {keys.get(key, key): value for key, value in tree[part].items()}
    write_json(path, sealed(tree))


def _new_names(tree: Tree) -> tuple[dict[str, str], dict[str, str]]:
    """Return the new names and the new keys of a table's runs by the old ones."""
    plan = validate(StudyPlan, tree["plan"], "plan")
    names, keys = dict[str, str](), dict[str, str]()
    written = {(each["row"], each["column"]): each for each in tree["cells"]}
    for place in plan.places:
        cell, of = Cell(plan, place), written.get((place.row, place.column), {})
        configs = [*cell.first, *(each["config"] for each in of.get("tried", ()))]
        configs += [each["config"] for each in of.get("dropped", ())]
        configs += [of["chosen"]] if of.get("chosen") is not None else []
        for config in configs:
            wanted = [cell.run_spec(config, "tuning", seed) for seed in plan.tuning_seeds]
            wanted += [cell.run_spec(config, "report", seed) for seed in plan.report.seeds]
            for each in wanted:
                root, before = each.experiment.data.root, _old_identity(each.experiment)
                named_root = None if root is None else Path(root).name
                names[_hash([before, named_root])] = name_of(each.experiment)
                keys[_hash([before, root])] = each.key
    return names, keys


def _hash(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:24]


def _old_identity(experiment: Experiment) -> str:
    """Return the identity that the second edition gave to an experiment before its data were read.

    It held paths and the label `scale`.
    """
    tree = experiment.record()
    for key in (*EXECUTION_KEYS, "name"):
        *above, last = key.split(".")
        owner = tree
        for part in above:
            owner = owner[part]
        owner.pop(last)
        if not owner:
            tree.pop(above[0])
    return hashlib.sha256(json.dumps([tree, ""], sort_keys=True).encode()).hexdigest()
