"""Similarity of FedMGP's prompt groups, and how often each is drawn (Fig. 3, Fig. 4, Table 13).

From a finished run's checkpoint, this analysis compares groups within a client and between clients:
cosines of text features (mean over classes), of image features (mean over test images), and of the
text and visual prompts, each flattened to one vector as in Eq. (7). The prompts are those that a
client is tested with; clients that never took part are left out. With `--client K` the matrices are
those of client K only, printed as numbers. The frequencies of drawn groups come from the rounds.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.prompts.fedmgp import FedMGP, GroupedClip
from fedray.base.errors import UserError
from fedray.models import Pixels
from fedray.results.analyses.extra_step import probe_images, reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis, count_option
from fedray.results.frame import LoadedRun, RunGroup, interval_of
from fedray.results.pages.cells import SPREAD, cell, metric_name
from fedray.results.pages.figures import Panel, figure_curves, figure_matrix
from fedray.results.pages.page import Section
from fedray.results.paired import Interval
from fedray.runtime.devices import pick_device
from fedray.runtime.groups import GroupRunner
from fedray.storage.metric import REPORTED, Metric

TEXT, IMAGE = "text features", "image features"
PROMPTS, VISUAL = "text prompts", "visual prompts"
WITHIN, SAME, OTHER = "within a client", "between clients, same group", "between clients, others"
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
        indices = range(len(self.clients))
        return torch.stack([self.cosines[client, :, client] for client in indices]).mean(0)

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
        same_client = torch.eye(clients, dtype=torch.bool)[:, None, :, None]
        same_group = torch.eye(groups, dtype=torch.bool)[None, :, None, :]
        pairs = {
            WITHIN: same_client & ~same_group,
            SAME: ~same_client & same_group,
            OTHER: ~same_client & ~same_group,
        }
        chosen = {pair: self.cosines[mask] for pair, mask in pairs.items()}
        return {pair: float(values.mean()) for pair, values in chosen.items() if len(values)}


Similarities = Mapping[str, Sequence[Mapping[str, GroupCosines]]]
"""For each configuration and seed, the cosines by kind of vectors."""


@analysis(
    count_option("--images", "Test images to compare on.", default=50),
    count_option("--clients", "Compare the first N clients.", default=10),
    count_option(
        "--client",
        "Compare only the groups of client K, and print their matrices (Fig. 3).",
        0,
        metavar="K",
    ),
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare prompt groups within and between clients, and count how often each was drawn."""
    options = request.options
    similarities = {
        member.label: [
            group_cosines(loaded, options["images"], options["clients"], options["client"])
            for loaded in member.runs
        ]
        for member in request.groups
    }
    sections = [similarity_section(similarities)]
    if options["client"] is not None:
        sections += matrix_sections(request.groups, similarities)
    sections += [section for member in request.groups for section in frequency_sections(member)]
    _draw(request, similarities)
    return sections


# --- similarity ----------------------------------------------------------------------------------


@torch.no_grad()
def group_cosines(
    loaded: LoadedRun, images: int, clients: int, only: int | None = None
) -> dict[str, GroupCosines]:
    """Return the cosines between the prompt groups of a finished run, by kind of vectors.

    Args:
        loaded: a run of FedMGP.
        images: number of test images for image features.
        clients: number of clients: the first ones that took part.
        only: a single client to compare instead.

    Raises:
        UserError: if the run is of another method or has no checkpoint, no client took part, or
            client `only` did not.
    """
    assembly, checkpoint = reopen(loaded.folder)
    if not isinstance(assembly.algorithm, FedMGP):
        raise UserError(
            f"{loaded.folder}: {loaded.method} has no groups of prompts to compare; leave the run "
            "out"
        )
    chosen = sorted(checkpoint.clients)[:clients]
    if not chosen:
        raise UserError(
            f"{loaded.folder}: no client has trained yet, so all groups are as initialised; "
            f"continue with --resume {shlex.quote(str(loaded.folder))}"
        )
    if only is not None:
        if only not in checkpoint.clients:
            raise UserError(
                f"{loaded.folder}: client {only} never took part; those that did: "
                f"{', '.join(map(str, sorted(checkpoint.clients)[:20]))}"
            )
        chosen = [only]
    device = pick_device(assembly.experiment.gpus)
    runtime = GroupRunner(assembly, device)
    data = assembly.data.at(checkpoint.snapshot.round)
    probe = probe_images(data, images, assembly.streams, device)
    vectors: dict[str, list[Tensor]] = defaultdict(list)
    for client in chosen:
        context = runtime.client(client, checkpoint.snapshot.round + 1)
        model = assembly.algorithm.begin(context, checkpoint.clients[client], None).model
        assert isinstance(model, GroupedClip)
        for kind, features in group_vectors(model, probe).items():
            vectors[kind].append(features.cpu())
    return {
        kind: GroupCosines.of(chosen, torch.stack(features)) for kind, features in vectors.items()
    }


def group_vectors(model: GroupedClip, images: Pixels) -> dict[str, Tensor]:
    """Return each group's text features, image features and prompts, each [G, n, d].

    Args:
        model: the model with one client's prompts.
        images: n images.
    """
    vectors = {}
    if model.hparams.text_length:
        vectors[TEXT] = model.text_features()
        vectors[PROMPTS] = model.text.clone().flatten(1).unsqueeze(1)
    if model.hparams.visual_length:
        vectors[IMAGE] = model.image_features(images)
        vectors[VISUAL] = model.visual.clone().flatten(1).unsqueeze(1)
    return vectors


def similarity_section(similarities: Similarities) -> Section:
    """Return the table of mean cosines, by configuration and kind of vectors."""
    pairs = (WITHIN, SAME, OTHER)
    rows = []
    for label, runs in similarities.items():
        for kind in runs[0]:
            means = [cosines[kind].means() for cosines in runs]
            intervals = [interval_of([m.get(pair) for m in means], COSINE) for pair in pairs]
            rows.append([f"{label}, {kind}", *(cell(interval, COSINE) for interval in intervals)])
    return Section("", (), [COSINE.name, *pairs], rows, [f"Mean {SPREAD} seeds."])


def matrix_sections(members: Sequence[RunGroup], similarities: Similarities) -> Iterator[Section]:
    """Yield the matrix of cosines between a client's groups, for each member's first seed."""
    for member in members:
        for kind, cosines in similarities[member.label][0].items():
            rows = [
                [f"group {j}", *(f"{value:.3f}" for value in row)]
                for j, row in enumerate(cosines.within.tolist())
            ]
            (client,) = cosines.clients
            title = f"{member.label}, seed {member.runs[0].seed}, client {client}, {kind}:"
            yield Section("", [title], ["cosine", *(f"group {j}" for j in range(len(rows)))], rows)


# --- selection -----------------------------------------------------------------------------------


def frequencies(member: RunGroup) -> dict[str, dict[int, dict[int, Interval]]]:
    """Return, by modality and group, the share of a round's clients that drew it; Table 13."""
    by_modality: dict[str, dict[int, dict[int, Interval]]] = {}
    for modality in ("text", "visual"):
        curves: dict[int, dict[int, Interval]] = {}
        while curve := member.curve(
            replace(SHARE, name=f"{REPORTED}drawn_{modality}_{len(curves)}")
        ):
            curves[len(curves)] = curve
        if curves:
            by_modality[modality] = curves
    return by_modality


def frequency_sections(member: RunGroup) -> Iterator[Section]:
    """Yield the frequency tables of a configuration: one row per round, one column per group."""
    for modality, curves in frequencies(member).items():
        rows = [
            [str(round_), *(cell(curve.get(round_), SHARE) for curve in curves.values())]
            for round_ in curves[0]
        ]
        means = [[interval.mean for interval in curve.values()] for curve in curves.values()]
        over_rounds = [Interval.of(sum(mean) / len(mean), 0.0, 1) for mean in means]
        rows.append(["mean", *(cell(mean, SHARE) for mean in over_rounds)])
        title = f"{member.label}, {modality}: {metric_name(SHARE)}, mean {SPREAD} seeds."
        yield Section("", [title], ["round", *(f"group {j}" for j in curves)], rows)


# --- figures -------------------------------------------------------------------------------------


def _draw(request: AnalysisRequest, similarities: Similarities) -> None:
    """Draw each configuration's frequencies and its first seed's matrices."""
    for index, member in enumerate(request.groups, 1):
        title = f"{member.label}, seed {member.runs[0].seed}"
        for kind, cosines in similarities[member.label][0].items():
            within = [str(j) for j in range(len(cosines.within))]
            matrices = {"within": (cosines.within, within)}
            if len(cosines.clients) > 1:
                matrices["between"] = (cosines.between, cosines.names)
            for scope, (matrix, names) in matrices.items():
                stem = f"groups_{index:02d}_{kind.replace(' ', '_')}_{scope}"
                above = f"{kind} {scope} clients, cosine: {title}"
                figure_matrix(matrix.tolist(), names, above, request.file(f"{stem}.png"))
        for modality, curves in frequencies(member).items():
            file = request.file(f"groups_{index:02d}_drawn_{modality}.png")
            named = {f"{modality} group {j}": curve for j, curve in curves.items()}
            figure_curves([Panel(metric_name(SHARE), named, is_share=True)], file, "round")
