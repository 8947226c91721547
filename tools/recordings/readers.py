"""Read the numbers of finished runs, tables and sweeps, as values by place.

A place says what was measured, such as `round 2: local_accuracy`. It names no field of a file. When
the form of a file changes, change its function here, so that it reads both forms.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import fedray

Values = dict[str, Any]
"""Numbers, texts, and lists of numbers, by place."""
ENTRIES = 10
"""Entries of a tensor that are compared where rounding may differ."""


def read_rounds(folder: Path) -> Values:
    """Return the metrics, clients' values, bytes and participants of every round of a run."""
    values: Values = {}
    for text in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "round" not in line:  # the record of the run's end
            continue
        place = f"round {line['round']}: "
        values |= {place + name: value for name, value in line["metrics"].items()}
        values |= {f"{place}client {c}": value for c, value in line["per_client"].items()}
        for way in ("up", "down"):
            values[f"{place}bytes {way}"] = sum(line[way]["bytes"].values())
        values[f"{place}participants"] = list(line["participants"])
    return values


def rounds_done(folder: Path) -> int:
    """Return how many rounds a run has written, round 0 included."""
    file = folder / "rounds.jsonl"
    return file.read_text(encoding="utf-8").count('"round":') if file.is_file() else 0


def read_choice(folder: Path) -> Values:
    """Return the numbers of the best and the last round of a run."""
    result = fedray.load(folder)
    chosen = {"best": result.best, "final": result.final}
    return {f"{name} round": None if at is None else at.round for name, at in chosen.items()}


def read_models(folder: Path, which: str) -> Values:
    """Return a hash and sampled numbers of every kept model, with what else it predicts with."""
    models = fedray.load(folder).models(which)  # type: ignore[arg-type]
    values: Values = {}
    for client in [None] if models.is_global else range(len(models)):
        model = models.model(client)
        tensors = [*model.state_dict().values(), *model.classifier.values()]
        place = f"{which} model" if client is None else f"{which} model of client {client}"
        values[f"{place}: hash"] = hash_of(tensors)
        values[f"{place}: numbers"] = [number for t in tensors for number in numbers_of(t)]
    return values


def hash_of(tensors: list[Any]) -> str:
    """Return a hash of the bytes of tensors, in order and without names."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(_bytes()).numpy().tobytes())
    return digest.hexdigest()[:16]


def numbers_of(tensor: Any) -> list[float]:
    """Return the size, norm, mean and ten entries of a tensor."""
    flat = tensor.detach().double().flatten()
    if not len(flat):
        return [0.0]
    at = [round(i * (len(flat) - 1) / (ENTRIES - 1)) for i in range(ENTRIES)]
    return [float(len(flat)), float(flat.norm()), float(flat.mean()), *flat[at].tolist()]


def _bytes() -> Any:
    import torch

    return torch.uint8


# --- studies -------------------------------------------------------------------------------------

ELAPSED = ("second", "time", "wall", "reason", "sha256", "std", "note", "folder")
"""Parts of columns' names that are not compared: durations, places, prose, derived."""


def read_csv(file: Path, keys: int = 1) -> Values:
    """Return the cells of a CSV file, by the first columns of the row and by column."""
    with file.open(encoding="utf-8", newline="") as lines:
        names, *rows = csv.reader(lines)
    values: Values = {}
    for row in rows:
        place = " ".join(row[:keys])
        for name, text in list(zip(names, row, strict=True))[keys:]:
            if not any(part in name for part in ELAPSED):
                values[f"{place}: {name}"] = _number(text)
    return values


def read_table(folder: Path) -> Values:
    """Return every cell's choices and values by seed, and the verdicts of a table."""
    table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    values: Values = {}
    for cell in table["cells"]:
        place = f"{cell['row']} @ {cell['column']}: "
        for seed, config in cell["choices"].items():
            for key, value in config.items():
                values[f"{place}{key} chosen by seed {seed}"] = value
        values[f"{place}configurations"] = len(cell["tried"])
        for seed, run in cell["reported"].items():
            for name, value in table["runs"][run]["values"].items():
                values[f"{place}seed {seed}: {name}"] = value
            values[f"{place}round of seed {seed}"] = table["runs"][run]["round"]
    for claim, *found in _verdicts(folder, table):
        for name, value in zip(("verdict", "p", "p_holm"), found, strict=True):
            values[f"{claim}: {name}"] = value
    return values


def _verdicts(folder: Path, table: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the claims of a table with verdict, p and corrected p, which old tables hold."""
    if "claims" in table:
        return [(c["claim"], c["verdict"], c["p"], c["p_holm"]) for c in table["claims"]]
    from fedray.results.record import TableRecord

    found = TableRecord.read(folder / "table.json").claims
    return [(c.claim.question, c.verdict, c.comparison.p, c.p_holm) for c in found]


def read_sweep(folder: Path) -> Values:
    """Return configurations, objectives and chosen rounds of a sweep, and the best command."""
    return read_csv(folder / "trials.csv", keys=4)


def _number(text: str) -> Any:
    """Return a cell's number, or its text; NaN is a text here: one seed has no spread."""
    try:
        value = float(text)
    except ValueError:
        return text
    return text if math.isnan(value) else value
