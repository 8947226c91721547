"""Wrong settings in short: a seeded sample of what `python -m benchmarks.faults settings` tries."""

from __future__ import annotations

from benchmarks.faults import settings


def test_wrong_settings_are_refused_with_their_key(tmp_path):
    tally = settings.run(150, 7, tmp_path)
    assert tally.count == 150
    assert tally.wrong == []


def test_every_parameter_of_everything_chosen_by_name_is_tried():
    tried = {word.split("=")[0] for case in settings.component_cases() for word in case.words}
    assert {"algorithm.lambda", "algorithm.tau_moon", "data.partition.alpha"} <= tried
    assert {"data.augment.padding", "model.clip.path", "text.encoder.pooling"} <= tried
    everything = [*settings.experiment_cases(), *settings.component_cases()]
    assert len(everything) > 1500


def test_the_harness_sees_what_must_not_be():
    case = settings.Case("a kind", ("rounds=x",), "rounds")
    judged = settings.judged
    assert judged(case, 2, "error: rounds: no number\n") == ("refused", "")
    for code, said in (
        (0, ""),
        (1, "failed: KeyError\n"),
        (2, "error: something\n"),
        (2, "Traceback ...\nKeyError: rounds\n"),
        (2, "error: rounds\nerror: rounds\n"),
    ):
        assert judged(case, code, said)[0] == "WRONG"
