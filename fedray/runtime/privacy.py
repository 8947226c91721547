"""Check, account for and describe the privacy of one experiment."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from fedray.base.errors import UserError
from fedray.config import Experiment
from fedray.core import Algorithm, algorithms, takes_equal_mean
from fedray.core.gate import exempt_fields
from fedray.evaluation.accountant import Accountant
from fedray.federation import Plan
from fedray.storage.run import Round, Run


def check_privacy(experiment: Experiment, method: type[Algorithm]) -> None:
    """Check that the method and the scenario support the guarantee of `privacy`."""
    keys = experiment.privacy
    if keys.mode == "none":
        return
    if keys.noise_multiplier > 0 and find_spec("dp_accounting") is None:
        raise UserError(
            f"privacy.mode={keys.mode} counts epsilon with dp-accounting, which is not installed; "
            'pip install "fedray[privacy]"'
        )
    if not method.uploads:
        raise UserError(
            f"privacy.mode={keys.mode} covers uploads, but algorithm={method.name} declares none "
            "(`uploads`); set privacy.mode=none"
        )
    images = [place for place, kind in exempt_fields(method.uploads) if kind == "images"]
    if images:
        raise UserError(
            f"algorithm={method.name} uploads clients' images ({', '.join(images)}), so an epsilon "
            "for the other fields would be meaningless; set privacy.mode=none"
        )
    if keys.mode != "central":
        return
    if not takes_equal_mean(experiment.algorithm.build()):
        raise UserError(
            "privacy.mode=central adds noise to the clients' mean with equal weights, but the "
            f"server of algorithm={method.name} does not take such a mean; set algorithm.weights="
            "uniform, if the method has that key, or privacy.mode=local"
        )
    if experiment.wire.up_bits < 32:
        raise UserError(
            f"privacy.mode=central gives no epsilon with wire.up_bits={experiment.wire.up_bits}, "
            "which changes updates after clipping; set it to 32"
        )


def accountant_of(experiment: Experiment, plan: Plan, before: Sequence[Round]) -> Accountant | None:
    """Return an accountant that has counted earlier rounds of the run; None without noise."""
    keys = experiment.privacy
    if keys.mode == "none" or keys.noise_multiplier == 0:
        return None
    accountant = Accountant(keys.mode, keys.noise_multiplier, keys.delta)
    for done in before:
        accountant.add(done.noised, done.participants, len(plan.joined(done.round)))
    return accountant


def privacy_lines(done: Run) -> list[str]:
    """Return the lines about privacy to print at the end of a run; none without privacy."""
    keys = done.info.config["privacy"]
    if keys["mode"] == "none":
        return []
    noise = "none: updates are only clipped, which gives no protection and no epsilon"
    if keys["noise_multiplier"]:
        noise = "of seed: epsilon is that of a deployment whose noise is secret"
    lines = [f"privacy: {keys['mode']}, noise {noise}"]
    last = done.rounds[-1].metrics if done.rounds else {}
    if "epsilon" in last:
        lines.append(f"epsilon: {last['epsilon']:.3g} at delta {keys['delta']:g}")
    fields = exempt_fields(algorithms.get(done.info.algorithm).uploads)
    exempt = ", ".join(f"{place} ({kind})" for place, kind in fields) or "no field of an upload"
    return [*lines, f"not covered: {exempt}; and what docs/privacy.md lists for every run"]
