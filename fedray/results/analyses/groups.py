"""Similarity of FedMGP's prompt groups, and how often each is drawn (Fig. 3, Fig. 4, Table 13).

From a finished run's checkpoint, this analysis compares groups within a client and between the
first clients: cosines of text features (mean over classes), of image features (mean over test
images), and of the text and visual prompts, each flattened to one vector as in Eq. (7). The prompts
are those that a client is tested with; clients that never took part are left out. With `--client K`
the matrices are those of client K only, printed as numbers. The frequencies of drawn groups come
from the rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.prompts.fedmgp import FedMGP, GroupedClip
from fedray.base.errors import UserError
from fedray.models import Pixels
from fedray.results.analyses.extra_step import probe_images, reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import LoadedRun, RunGroup, interval_of
from fedray.results.pages.cells import SPREAD, cell, metric_name, number
from fedray.results.pages.figures import Plot, Series, figure_curves, figure_matrix
from fedray.results.pages.page import Section
from fedray.results.paired import Interval
from fedray.runtime.devices import pick_device
from fedray.runtime.groups import GroupRunner
from fedray.storage.metric import REPORTED, Metric

WITHIN, SAME, OTHER = "within a client", "between clients, same group", "between clients, others"
IMAGES, CLIENTS = 50, 10
"""Test images to compare on, and clients that are compared: the first that took part."""
COSINE = Metric("cosine of groups", "correlation", None)
SHARE = Metric("share of the clients that drew the group", "share", None, None)


@dataclass(frozen=True)
class GroupCosines:
    """Cosines between the prompt groups of N clients with G groups each.

    Attributes:
        clients: ids of the clients.
        cosines: [N, G, N, G], means over inputs.
    """

    clients: Sequence[int]
    cosines: Tensor

    @classmethod
    def of(cls, clients: Sequence[int], vectors: Tensor) -> GroupCosines:
        """Compute the cosines from each group's features of n classes or images [N, G, n, d]."""
        count, groups, inputs, _ = vectors.shape
        unit = F.normalize(vectors.double(), dim=-1).reshape(count * groups, -1)
        return cls(clients, (unit @ unit.T / inputs).reshape(count, groups, count, groups))

    @property
    def within(self) -> Tensor:
        """Cosines between groups of one client, mean over clients [G, G]; Fig. 3."""
        return torch.stack([self.cosines[i, :, i] for i in range(len(self.clients))]).mean(0)

    @property
    def between(self) -> Tensor:
        """Cosines between all groups of all clients [N*G, N*G], client by client; Fig. 4."""
        return self.cosines.flatten(2, 3).flatten(0, 1)

    @property
    def names(self) -> list[str]:
        """Names of the rows of `between`: client.group."""
        return [f"{client}.{j}" for client in self.clients for j in range(self.cosines.shape[1])]

    def means(self) -> dict[str, float]:
        """Return mean cosines of distinct groups by kind of pair, without kinds that are empty."""
        clients, groups = self.cosines.shape[:2]
        own = torch.eye(clients, dtype=torch.bool)[:, None, :, None]
        same = torch.eye(groups, dtype=torch.bool)[None, :, None, :]
        pairs = {WITHIN: own & ~same, SAME: ~own & same, OTHER: ~own & ~same}
        chosen = {pair: self.cosines[mask] for pair, mask in pairs.items()}
        return {pair: float(values.mean()) for pair, values in chosen.items() if len(values)}


@analysis(
    click.Option(
        ["--client"],
        type=click.IntRange(0),
        metavar="K",
        help="Compare only the groups of client K, and print their matrices (Fig. 3).",
    )
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare prompt groups within and between clients, and count how often each was drawn."""
    only, rows, further = request.options["client"], [], list[Section]()
    for index, member in enumerate(request.groups, 1):
        runs = [group_cosines(loaded, only) for loaded in member.runs]
        for kind in runs[0]:
            means = [cosines[kind].means() for cosines in runs]
            pairs = [interval_of([m.get(p) for m in means], COSINE) for p in (WITHIN, SAME, OTHER)]
            rows.append([f"{member.label}, {kind}", *(cell(pair, COSINE) for pair in pairs)])
        _draw_matrices(request, f"groups_{index:02d}", member, runs[0])
        if only is not None:
            further += _matrix_sections(member, runs[0])
        for modality, curves in frequencies(member).items():
            file = request.file(f"groups_{index:02d}_drawn_{modality}.png")
            series = [Series(curve, f"{modality} group {j}", j) for j, curve in enumerate(curves)]
            figure_curves([Plot(series, "round", metric_name(SHARE), is_share=True)], file)
            further.append(_frequency_section(f"{member.label}, {modality}", curves))
    header = [COSINE.name, WITHIN, SAME, OTHER]
    return [Section("", (), header, rows, [f"Mean {SPREAD} seeds."]), *further]


@torch.no_grad()
def group_cosines(loaded: LoadedRun, only: int | None = None) -> dict[str, GroupCosines]:
    """Return the cosines between the prompt groups of a finished run, by kind of vectors.

    Args:
        loaded: a run of FedMGP.
        only: a single client to compare; None: the first `CLIENTS` that took part.

    Raises:
        UserError: if the run is of another method or has no checkpoint, no client took part, or
            client `only` did not.
    """
    assembly, checkpoint = reopen(loaded.folder)
    if not isinstance(assembly.algorithm, FedMGP):
        raise UserError(f"{loaded.folder}: {loaded.method} has no groups of prompts to compare")
    known = sorted(checkpoint.clients)
    chosen = known[:CLIENTS] if only is None else [client for client in known if client == only]
    if not chosen:
        who = "no client has trained yet" if only is None else f"client {only} never took part"
        raise UserError(f"{loaded.folder}: {who}; clients that did: {known[:20]}")
    device = pick_device(assembly.experiment.gpus)
    runtime = GroupRunner(assembly, device)
    data = assembly.data.at(checkpoint.snapshot.round)
    probe = probe_images(data, IMAGES, assembly.streams, device)
    vectors: dict[str, list[Tensor]] = defaultdict(list)
    for client in chosen:
        context = runtime.client(client, checkpoint.snapshot.round + 1)
        model = assembly.algorithm.begin(context, checkpoint.clients[client], None).model
        assert isinstance(model, GroupedClip)
        for kind, features in _group_vectors(model, probe).items():
            vectors[kind].append(features.cpu())
    return {
        kind: GroupCosines.of(chosen, torch.stack(features)) for kind, features in vectors.items()
    }


def _group_vectors(model: GroupedClip, images: Pixels) -> dict[str, Tensor]:
    """Return each group's text features, image features and prompts, each [G, n, d]."""
    vectors = {}
    if model.hparams.text_length:
        vectors["text features"] = model.text_features()
        vectors["text prompts"] = model.text.clone().flatten(1).unsqueeze(1)
    if model.hparams.visual_length:
        vectors["image features"] = model.image_features(images)
        vectors["visual prompts"] = model.visual.clone().flatten(1).unsqueeze(1)
    return vectors


def _matrix_sections(
    member: RunGroup, similarities: Mapping[str, GroupCosines]
) -> Iterator[Section]:
    """Yield the matrix of cosines between a client's groups, for a group's first seed."""
    for kind, cosines in similarities.items():
        names = [f"group {j}" for j in range(len(cosines.within))]
        rows = [
            [name, *(f"{value:.3f}" for value in row)]
            for name, row in zip(names, cosines.within.tolist(), strict=True)
        ]
        (client,) = cosines.clients
        title = f"{member.label}, seed {member.runs[0].seed}, client {client}, {kind}:"
        yield Section("", [title], ["cosine", *names], rows)


def frequencies(member: RunGroup) -> dict[str, list[dict[int, Interval]]]:
    """Return, by modality and group, the share of a round's clients that drew it; Table 13."""
    curves: dict[str, list[dict[int, Interval]]] = defaultdict(list)
    for modality in ("text", "visual"):
        name = f"{REPORTED}drawn_{modality}_{{}}"
        while curve := member.curve(replace(SHARE, name=name.format(len(curves[modality])))):
            curves[modality].append(curve)
    return {modality: of for modality, of in curves.items() if of}


def _frequency_section(title: str, curves: Sequence[Mapping[int, Interval]]) -> Section:
    """Return the table of how often groups were drawn: a row per round, a column per group."""
    rows = [[str(r), *(cell(curve.get(r), SHARE) for curve in curves)] for r in curves[0]]
    means = [fmean(share.mean for share in curve.values()) for curve in curves]
    rows.append(["mean", *(number(mean, SHARE) for mean in means)])
    text = f"{title}: {metric_name(SHARE)}, mean {SPREAD} seeds."
    return Section("", [text], ["round", *(f"group {j}" for j in range(len(curves)))], rows)


def _draw_matrices(
    request: AnalysisRequest, stem: str, member: RunGroup, similarities: Mapping[str, GroupCosines]
) -> None:
    """Draw the matrices of a configuration's first seed."""
    for kind, cosines in similarities.items():
        matrices = {"within": (cosines.within, [str(j) for j in range(len(cosines.within))])}
        if len(cosines.clients) > 1:
            matrices["between"] = (cosines.between, cosines.names)
        for scope, (matrix, names) in matrices.items():
            file = request.file(f"{stem}_{kind.replace(' ', '_')}_{scope}.png")
            title = f"{kind} {scope} clients, cosine: {member.label}, seed {member.runs[0].seed}"
            figure_matrix(matrix.tolist(), names, title, file)
