"""Every promise of SECURITY.md has tests."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest
from torch import nn

import fedray
from fedray.base.errors import FedrayError
from fedray.models.pretrained import start_from_pretrained
from fedray.runtime import cluster

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(fedray.__file__).parent
PROMISES = {
    "`show`, `report`": "plugins/test_named_texts::test_what_only_reads_a_run_loads_no_plugin",
    "`predict`, `fedray.load`": "plugins/test_named_texts::"
    "test_the_text_of_a_folder_runs_if_the_user_names_a_copy",
    "Nothing in it is unpickled": "docs/test_security::test_files_are_never_unpickled",
    "A changed bit": "storage/test_states::test_each_bit_of_a_pointer_counts",
    "Rounds that": "runtime/test_session::"
    "test_rounds_that_the_checkpoint_does_not_know_are_refused",
    "An edited number": "studies/test_verify::test_an_edited_number_is_found",
    "A pipe or a device": "storage/test_files::test_what_is_no_regular_file_is_not_waited_for",
    "It is data": "plugins/test_named_texts::test_a_file_that_an_experiment_names_runs",
    "Aliases": "config/test_config::test_aliases_that_take_all_memory_are_refused",
    "A file that is too large": "storage/test_files::test_a_file_is_measured_before_it_is_read",
    "It changes nothing": "config/test_input_files::"
    "test_a_file_counts_by_its_content_wherever_an_experiment_names_it",
    "It is a program": "plugins/test_named_texts::test_the_users_own_files_run",
    "A module": "plugins/test_stranger_modules::test_only_entry_points_count_as_installed",
    "`fedray` and": "plugins/test_stranger_modules::test_nothing_of_the_current_folder_is_imported",
    "Weights in": "docs/test_security::test_code_in_a_weight_file_does_not_run",
    "No member": "cli/test_get::test_an_archive_that_leads_out_of_its_folder",
    "Names and values": "cli/test_terminal_text::"
    "test_what_a_command_prints_has_no_control_characters",
    "HTML": "test_markdown::test_tags_are_escaped_outside_of_code",
    "Ray is started": "docs/test_security::test_ray_is_started_for_this_machine_alone",
    "The cluster scripts": "test_clusters::test_script_demands_tokens_and_hides_them",
    "Two processes": "storage/test_claim::test_one_process_at_a_time",
    "What a kill": "faults/test_states_killed::test_killed_at_any_time",
    "An edit of": "storage/test_node_cache::test_an_edit_that_keeps_the_size_is_not_noticed",
    "Passwords": "test_masking::test_passwords_in_addresses_are_masked",
    "With differential": "runtime/test_private_runs::test_epsilon_is_in_every_round_and_stated",
}
"""The beginning of each sentence of SECURITY.md, and its test."""


def test_every_sentence_has_a_test():
    page = (ROOT / "SECURITY.md").read_text().split("\n## ", 2)[2]
    sentences = re.findall(r"^- (.+)$", page, re.MULTILINE)
    kept = {start: [s for s in sentences if s.startswith(start)] for start in PROMISES}
    assert sorted(s for found in kept.values() for s in found) == sorted(sentences)
    for place in PROMISES.values():
        file, _, name = place.partition("::")
        text = (ROOT / "tests" / f"{file}.py").read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), place


def test_ray_is_started_for_this_machine_alone(monkeypatch):
    options = {}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **given: options.update(given))
    monkeypatch.setattr("ray.nodes", list)
    cluster.connect()
    assert (options["_node_ip_address"], options["include_dashboard"]) == ("127.0.0.1", False)


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_files_are_never_unpickled():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called(node) == "torch.load":
                assert given.get("weights_only") == "True", path
            if called(node) in ("np.load", "numpy.load"):
                assert given.get("allow_pickle") == "False", path
            unpickles = r"(pickle|cloudpickle|dill|joblib)\.(loads?|Unpickler)"
            assert not re.fullmatch(unpickles, called(node)), path


class Harm:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt"])
def test_code_in_a_weight_file_does_not_run(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"weight": Harm(tmp_path / "harm")}, protocol=2))
    with pytest.raises(FedrayError):
        start_from_pretrained(nn.Linear(1, 1), "resnet18", str(path))
    assert not (tmp_path / "harm").exists()
