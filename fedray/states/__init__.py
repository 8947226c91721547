"""Clients' states at rest: in memory up to a bound, then in mapped files that a checkpoint names.

segments.py  files of states, a record each
index.py     who rests where: lines that are only ever appended
written.py   what stands beside them: sealed facts, payloads taken apart
store.py     the states of one run, of which its process holds references
"""

from fedray.states.index import IndexLog
from fedray.states.segments import (
    LARGE_STATE,
    LARGE_TENSOR,
    Place,
    SegmentWriter,
    check_state,
    damaged,
    read_state,
    state_size,
)
from fedray.states.store import Saving, StateStore
from fedray.states.written import put_together, read_sealed, taken_apart

__all__ = [
    "IndexLog",
    "LARGE_STATE",
    "LARGE_TENSOR",
    "Place",
    "Saving",
    "SegmentWriter",
    "StateStore",
    "check_state",
    "damaged",
    "put_together",
    "read_sealed",
    "read_state",
    "state_size",
    "taken_apart",
]
