"""What a run leaves behind, typed; the only reader and writer of result.json.

metric.py   what a number means: unit, direction, what it was measured on
traffic.py  parameters and bytes by kind
round.py    one round
run.py      a run: what determined it, its rounds, best and final
release.py  what clients released under differential privacy
folder.py   the run's folder and its files
versions.py versions of what makes the numbers
"""

from fedray.records.folder import ARTIFACTS, RESULT, RunFolder, RunWriter, find_runs
from fedray.records.metric import REPORTED, Direction, Metric, best_of, find_metric, undeclared
from fedray.records.release import Release, ReleaseLog, without_void
from fedray.records.round import Event, Round
from fedray.records.run import HEADLINE, SCHEMA, Costs, Run, RunInfo, Status, Summary
from fedray.records.traffic import Traffic, megabytes
from fedray.records.versions import versions

__all__ = [
    "ARTIFACTS",
    "Costs",
    "Direction",
    "Event",
    "HEADLINE",
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
    "Status",
    "Summary",
    "Traffic",
    "best_of",
    "find_metric",
    "find_runs",
    "megabytes",
    "undeclared",
    "versions",
    "without_void",
]
