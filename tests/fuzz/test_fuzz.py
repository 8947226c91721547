"""Fixed seeds of the fuzzer, and the experiments in which it has found faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fuzz import FIXED, drawn_from, judge, without_effect
from oracles import SCOPE, processes
from shrinking import CASES, read_case, shrink, write_case

from fedray.laws.draws import accepted, draw


@pytest.mark.parametrize("seed", FIXED)
def test_a_drawn_experiment_has_no_fault(seed):
    assert judge(drawn_from(seed)).faults == {}


@pytest.mark.parametrize("path", sorted(CASES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_case_has_no_fault(path):
    verdict = judge(read_case(path))
    assert (verdict.faults, verdict.note) == ({}, "")


def test_a_seed_determines_the_experiment():
    first, second = draw(5, SCOPE), draw(5, SCOPE)
    assert first.experiment == second.experiment
    assert draw(6, SCOPE).experiment != first.experiment


def test_shrinking_keeps_what_fails(tmp_path):
    drawn = draw(0, replace(SCOPE, methods=("fedprox",)))
    tree = {**drawn.tree, "shuffle": False, "eval_every": 2}
    drawn = type(drawn)(0, tree, (), accepted(tree, SCOPE))
    smaller = shrink(drawn, lambda one: one.experiment.shuffle is False)
    assert smaller.tree["algorithm"] == {"name": "local"}
    assert (smaller.tree["shuffle"], smaller.tree["rounds"]) == (False, 1)
    assert "eval_every" not in smaller.tree
    assert read_case(write_case(smaller, tmp_path, "shuffle")).tree == smaller.tree


def test_a_key_without_effect_is_a_fault():
    verdict = judge(drawn_from(0), ())
    tries = [[("eval_every", False)] * 6, [("lr", False)] * 5 + [("lr", True)]]
    verdicts = [type(verdict)(0, "local", effect=effect) for key in tries for effect in key]
    assert without_effect(verdicts) == ["eval_every"]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("seed", [0, 3])
def test_killed_on_ray_and_continued_in_a_fresh_process(seed):
    assert list(processes(drawn_from(seed))) == []
