"""Clients' states and checkpoints: small ones in an SQLite file, large ones in separate files.

tensors.py   nested trees of tensors as safetensors
database.py  numbered trees of one checkpoint, replaced in one transaction
store.py     the states of one run, on top of the database of its last checkpoint
"""

from fedray.states.database import DATABASE, Entry, StateDatabase
from fedray.states.store import StateStore, state_size
from fedray.states.tensors import (
    LARGE,
    Place,
    damaged,
    join_payload,
    read_tree,
    split_payload,
    tree_bytes,
    write_tree,
)
