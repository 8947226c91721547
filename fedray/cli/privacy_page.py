"""docs/privacy.md: what is claimed, and what each method shows to whom, from what it declares."""

from __future__ import annotations

from typing import NamedTuple

from fedray.core import Algorithm, Payload, PayloadTypes, algorithms
from fedray.core.privacy import COVERS, EXEMPT_KINDS
from fedray.runtime.privacy import ALWAYS_EXEMPT

HEAD = """# Privacy

What leaves a client, who sees it, and what differential privacy covers. Written by
`python -m fedray docs` from what methods declare (`uploads`, `downloads`) and what the fields of
payloads say of themselves (`reveals`).

## Without privacy

fedray encrypts and hides nothing: it is for experiments. Three attackers:

- the **server**, honest but curious, follows the protocol and keeps every upload, by client;
- **other clients** see what they are sent, and whatever follows from it;
- an **eavesdropper** sees uploads and downloads, since Ray's traffic is not encrypted unless Ray's
  TLS is set up (`RAY_USE_TLS`); who sends how much and when, in any case.

## Asking for it

```
python -m fedray.run fedavg_digits_central_dp            # noise at the trusted server
python -m fedray.run fedavg_digits_local_dp              # noise at every client
python -m fedray.run fedproto_digits privacy.mode=local privacy.clip_norm=1 \\
    privacy.noise_multiplier=2
```

- `privacy.mode`: `none`, `central` or `local`.
- `privacy.clip_norm`: S. An update is everything that is covered of an upload, as one vector, minus
  what was downloaded at the same place; nothing is subtracted from the prototypes of the classes
  that a client holds. It is scaled down to this L2 norm.
- `privacy.noise_multiplier`: σ. Gaussian noise of deviation σ S is added, to the sum of a step's
  updates (central) or to each (local).
- `privacy.delta`: the δ that ε is reported at.
- `privacy.noise_seed`: repeats the noise, and protects nobody. Left out, every run draws its noise
  anew from the operating system.

**Neighbours** are two federations that differ in one client, whose data is replaced by any other
(what is exempt unchanged). A sum of clipped updates moves by up to 2 S then, so that ε is that of
Gaussian mechanisms with noise multiplier σ / 2. Who adds or removes a client has σ there: compare ε
only with those that replace one.

**central** covers {central}.
The server's step is given nothing of what is covered but the noisy mean of the m updates
that arrived, with equal weights and deviation σ S / m. It is refused for methods whose server takes
anything else, and where a scenario would change the sample or the sensitivity. A round draws m of N
clients without replacement, for which `dp-accounting`'s Rényi accountant gives credit (Wang et al.,
AISTATS 2019, Theorem 27). They are drawn from the experiment's seed: whoever publishes it,
config.yaml or result.json has `epsilon_known_participants`.

**local** covers {local}.

Every line of rounds.jsonl has `epsilon` (of the run so far), `epsilon_round` (of this round alone)
and `epsilon_known_participants`; `privacy` says what they cover. All uploads of a round count,
those before round 1 too. releases.jsonl in the run's folder is written before clients are asked: a
step that is done again after a kill, with new noise, has released twice, and ε says so. So two runs
of one experiment differ, and so do a resumed and an undisturbed one, unless the noise has a seed.

**Exempt**, whatever the mode, are fields of the kinds {kinds} (in *italics*
below), among them counts of samples and classes, and the running statistics of batch normalisation
(take models without, or FedBN); and

{exempt}

**Not claimed**: noise is made in floating point by a generator that is seeded with 256 bits of the
system's entropy, and is no cryptographic one. Hyper-parameters that are tuned on clients' data cost
budget that nobody counts.

## What FedAvg on digits pays

![accuracy against epsilon](privacy.png)

[Numbers and command](results.md#privacy).

## Method by method
"""

NOTHING = "nothing"


class Seen(NamedTuple):
    """What a method shows; methods that show the same share a section."""

    uploads: PayloadTypes
    downloads: PayloadTypes
    modes: str


def privacy_page() -> str:
    """The page's text."""
    exempt = "\n".join(f"- {line};" for line in ALWAYS_EXEMPT)
    kinds = " and ".join(f"`{kind}`" for kind in EXEMPT_KINDS)
    parts = [HEAD.format(**COVERS, kinds=kinds, exempt=f"{exempt[:-1]}.")]
    sections: dict[Seen, list[str]] = {}
    for method in algorithms.entries():
        seen = Seen(method.uploads, method.downloads, _modes(method))
        sections.setdefault(seen, []).append(f"{method.title} (`{method.name}`)")
    for seen, methods in sections.items():
        parts += [
            f"### {', '.join(methods)}",
            "",
            *(f"- Server and eavesdropper: {text}" for text in _told(seen.uploads)),
            *(f"- Other clients and eavesdropper: {text}" for text in _told(seen.downloads)),
            f"- Privacy: {seen.modes}.",
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def _told(payloads: PayloadTypes) -> list[str]:
    """A line for each payload."""
    if not payloads:
        return [f"{NOTHING}."]
    return [f"{p.reveals()}. `{p.__name__}`: {_fields(p)}." for p in payloads]


def _fields(payload: type[Payload]) -> str:
    """The fields with their kinds, the exempt ones in italics."""
    return ", ".join(
        f"*{field.name}*" if field.kind in EXEMPT_KINDS else f"{field.name} ({field.kind})"
        for field in payload.declared()
    )


def _modes(method: type[Algorithm]) -> str:
    """Which modes can be stated of a method."""
    if not method.uploads:
        return "nothing is uploaded, so there is nothing to cover"
    kinds = {field.kind for payload in method.uploads for field in payload.declared()}
    if "images" in kinds:
        return "refused, since images travel in the clear"
    choices = {"weights": "uniform"} if "weights" in method.HParams.model_fields else {}
    if method.means_equally(method.HParams.model_validate(choices)):
        return "local; central with `algorithm.weights=uniform`"
    return "local"
