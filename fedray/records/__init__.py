"""Typed records of a run; the only reader and writer of a run's folder.

metric.py       the declaration of a metric, and the selection of the best round
run.py          a run: its settings, rounds, best and final
environment.py  hardware, numerical libraries and versions
release.py      releases of clients under differential privacy
folder.py       the run's folder and its files
writer.py       writes the files while a run is executed
claim.py        locks the folder, and checks that it can be written
names.py        the names of fedray's files; other entries of a run's folder are never removed
checked_json.py JSON with a checksum
"""

from fedray.records.checked_json import (
    checksum,
    parse_json,
    read_checked,
    read_json,
    sealed,
    unsealed,
)
from fedray.records.claim import FolderClaim, is_claimed, prove_writable
from fedray.records.environment import Environment, environment, versions
from fedray.records.folder import (
    ARTIFACTS,
    RESULT,
    ResultFile,
    RunFolder,
    find_run_folders,
    find_runs,
    write_run_list,
)
from fedray.records.metric import (
    BEST,
    HEADLINE,
    REPORTED,
    VALIDATION,
    Direction,
    Metric,
    Select,
    Stopping,
    best_round,
    chosen_by,
    counterpart,
    find_metric,
)
from fedray.records.names import check_entries, check_state_file, own_entries
from fedray.records.release import Release, ReleaseLog, without_void
from fedray.records.run import (
    MEASURED_SECONDS,
    Costs,
    EarlierEnvironment,
    Event,
    Round,
    Run,
    RunInfo,
    Status,
    Summary,
    Traffic,
    Work,
    data_name,
)
from fedray.records.writer import RunWriter
