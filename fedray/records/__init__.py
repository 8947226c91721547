"""What a run leaves behind, typed; the only reader and writer of a run's folder.

metric.py       what a number means, and which round is the best by it
run.py          a run: what determined it, its rounds, best and final
environment.py  hardware, numerical libraries and versions
release.py      what clients released under differential privacy
folder.py       the run's folder and its files
writer.py       writes them while a run is going
claim.py        keeps others out of the folder, and proves that it can be written
names.py        the names that fedray gives; no other entry of a run's folder is removed
checked_json.py JSON that carries its own checksum
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
from fedray.records.names import check_state_file, own_entries, refuse_links
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
