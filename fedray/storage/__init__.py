"""What lies on a disk.

files.py        atomic files, reading of users' files, names and places of folders
json_files.py   JSON with a checksum
cache.py        the node's cache of arrays
run.py          a run: its settings, rounds, best and final
metric.py       the declaration of a metric, and the selection of the best round
environment.py  hardware, numerical libraries and versions
run_folder.py   the run's folder and its files
writer.py       writes the files while a run is executed
claim.py        locks the folder, and checks that it can be written
entries.py      the names of fedray's files; other entries of a run's folder are never removed
tensors.py      nested trees of tensors as safetensors
database.py     snapshots of numbered trees, replaced in one transaction, and their pins
states.py       the clients' states of one run, on top of the database of its last checkpoint
checkpoint.py   the snapshots of a run
kept_models.py  the models of the best round and of the last
copies.py       copies of results at a URI
"""
