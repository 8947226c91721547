"""Check, account for and describe the privacy of one experiment."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from fedray.config import Experiment
from fedray.core import (
    Algorithm,
    HyperParameters,
    Privacy,
    algorithms,
    takes_equal_mean,
)
from fedray.core.privacy import exempt_fields
from fedray.errors import UserError
from fedray.evaluation.accountant import Accountant
from fedray.federation import Plan
from fedray.storage.run import Round, Run

ALWAYS_EXEMPT = (
    "metrics, among them the accuracies on the clients' own test images",
    "train_loss, and what clients report (client/...)",
    "who takes part or drops out, and the duration and bytes of each step",
    "the partition in run.json and the checkpoints, which stay with the experimenter",
)
"""Information about clients in every result that the noise does not cover."""


def privacy_of(experiment: Experiment) -> Privacy | None:
    """Return the clipping and noise of an experiment; None without privacy."""
    keys = experiment.privacy
    if keys.mode == "none":
        return None
    assert keys.clip_norm is not None
    return Privacy(keys.mode, keys.clip_norm, keys.noise_multiplier, experiment.seed)


def check_privacy(experiment: Experiment, method: type[Algorithm]) -> None:
    """Check that the method and the scenario support the guarantee of `privacy`."""
    mode = experiment.privacy.mode
    if mode == "none":
        return
    if experiment.privacy.noise_multiplier > 0 and find_spec("dp_accounting") is None:
        raise UserError(
            f"privacy.mode={mode} counts epsilon with dp-accounting, which is not installed; "
            'pip install "fedray[privacy]"'
        )
    if not method.uploads:
        raise UserError(
            f"privacy.mode={mode} covers uploads, but algorithm={method.name} declares none "
            "(`uploads`); set privacy.mode=none"
        )
    images = [place for place, kind in exempt_fields(method.uploads) if kind == "images"]
    if images:
        raise UserError(
            f"algorithm={method.name} uploads clients' images ({', '.join(images)}), so an epsilon "
            "for the other fields would be meaningless; set privacy.mode=none"
        )
    if mode == "central":
        _check_central(experiment, method)


def _check_central(experiment: Experiment, method: type[Algorithm]) -> None:
    """Check that the noise is added to an equally weighted mean over the drawn clients."""
    component, bits = experiment.algorithm, experiment.wire.up_bits
    hparams = component.params
    assert isinstance(hparams, HyperParameters)
    if not takes_equal_mean(method, hparams):
        can = "weights" in method.HParams.model_fields
        can = can and takes_equal_mean(method, hparams.model_copy(update={"weights": "uniform"}))
        remedy = f"set {'algorithm.weights=uniform' if can else 'privacy.mode=local'}"
        raise UserError(
            "privacy.mode=central adds noise to the clients' mean with equal weights, but the "
            f"server of algorithm={component.name} does not take such a mean; {remedy}"
        )
    if bits < 32:
        raise UserError(
            f"privacy.mode=central gives no epsilon here: wire.up_bits={bits} changes updates "
            "after clipping; set it to 32"
        )


def accountant_of(experiment: Experiment, plan: Plan, before: Sequence[Round]) -> Accountant | None:
    """Return an accountant that has counted earlier rounds of the run; None without noise."""
    keys = experiment.privacy
    if keys.mode == "none" or keys.noise_multiplier == 0:
        return None
    accountant = Accountant(keys.mode, keys.noise_multiplier, keys.delta)
    for done in before:
        joined = len(plan.joined(done.round))
        accountant.add(done.noised, done.participants, joined)
    return accountant


def privacy_statement(experiment: Experiment) -> dict[str, Any] | None:
    """Return the guarantee and its exemptions for run.json; None without privacy."""
    keys = experiment.privacy
    if keys.mode == "none":
        return None
    method = algorithms.get(experiment.algorithm.name)
    return {
        "mode": keys.mode,
        "clip_norm": keys.clip_norm,
        "noise_multiplier": keys.noise_multiplier,
        "delta": keys.delta,
        "neighbours": "one client's data replaced by any other data; exempt information unchanged",
        "noise": _describe_noise(experiment),
        "exempt": [
            *(f"{place} ({kind})" for place, kind in exempt_fields(method.uploads)),
            *ALWAYS_EXEMPT,
        ],
    }


def _describe_noise(experiment: Experiment) -> str:
    keys = experiment.privacy
    if keys.noise_multiplier == 0:
        return "none: updates are only clipped, which gives no protection and no epsilon"
    return (
        "from seed, so that the simulation is repeatable: anyone who knows the seed can remove the "
        "noise, and epsilon is that of a deployment whose noise is secret"
    )


def privacy_lines(done: Run) -> list[str]:
    """Return the lines about privacy to print at the end of a run; none without privacy."""
    guarantee = done.info.privacy
    if guarantee is None:
        return []
    lines = [f"privacy: {guarantee['mode']}, noise {guarantee['noise']}"]
    last = done.rounds[-1].metrics if done.rounds else {}
    if "epsilon" in last:
        if_known, total = last["epsilon_known_participants"], last["epsilon"]
        remark = f" ({if_known:.3g} if it is known who took part)" if if_known > total else ""
        lines.append(f"epsilon: {total:.3g} at delta {guarantee['delta']:g}{remark}")
    return [*lines, f"not covered: {'; '.join(guarantee['exempt'])}"]
