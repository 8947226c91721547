"""What a run leaves behind, typed; the only reader and writer of result.json.

metric.py   what a number means: unit, direction, what it was measured on
choice.py   which round is the best, and on which images that is chosen
traffic.py  parameters and bytes by kind
round.py    one round
run.py      a run: what determined it, its rounds, best and final
release.py  what clients released under differential privacy
folder.py   the run's folder and its files
writer.py   writes them while a run is going
claim.py    keeps others out of the folder, and proves that it can be written
names.py    the names that fedray gives; no other entry of a run's folder is removed
sealed.py   JSON that carries its own checksum
versions.py versions of what makes the numbers
"""

from fedray.records.choice import (
    BEST,
    VALIDATION,
    Select,
    Stopping,
    best_round,
    chosen_by,
    counterpart,
)
from fedray.records.claim import FolderClaim, is_claimed, prove_writable
from fedray.records.folder import ARTIFACTS, RESULT, RunFolder, find_runs
from fedray.records.metric import (
    HEADLINE,
    REPORTED,
    Direction,
    Metric,
    find_metric,
    undeclared,
)
from fedray.records.names import check_state_file, own_entries, refuse_links
from fedray.records.release import Release, ReleaseLog, without_void
from fedray.records.round import MEASURED_SECONDS, Event, Round, rounds_checksum
from fedray.records.run import SCHEMA, Costs, Run, RunInfo, Status, Summary, data_name
from fedray.records.sealed import checksum, parse_json, read_checked, read_json, sealed, unsealed
from fedray.records.traffic import Traffic
from fedray.records.versions import MADE_BY, versions
from fedray.records.writer import RunWriter

__all__ = [
    "ARTIFACTS",
    "BEST",
    "Costs",
    "Direction",
    "Event",
    "FolderClaim",
    "HEADLINE",
    "MADE_BY",
    "MEASURED_SECONDS",
    "Metric",
    "REPORTED",
    "RESULT",
    "Release",
    "ReleaseLog",
    "Round",
    "Run",
    "RunFolder",
    "RunInfo",
    "RunWriter",
    "SCHEMA",
    "Select",
    "Status",
    "Stopping",
    "Summary",
    "Traffic",
    "VALIDATION",
    "best_round",
    "check_state_file",
    "checksum",
    "data_name",
    "chosen_by",
    "counterpart",
    "find_metric",
    "find_runs",
    "is_claimed",
    "own_entries",
    "parse_json",
    "prove_writable",
    "read_checked",
    "read_json",
    "refuse_links",
    "rounds_checksum",
    "sealed",
    "undeclared",
    "unsealed",
    "versions",
    "without_void",
]
