"""How alike are FedMGP's prompt groups, and which of them travel (Fig. 3, Fig. 4, Table 13)?

Within a client and between clients, from a finished run's checkpoint: cosines of text features,
mean over classes; of image features, mean over test images; and of the text and visual prompts
themselves, each as one vector as in Eq. (7). A client's prompts are those that it is tested with;
clients that never took part have none of their own. With `--client K` the matrices are those of
that client alone, with their numbers. Which groups were drawn comes from the rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.prompts.fedmgp import FedMGP
from fedray.analyses.extra_step import probe_images, reopen
from fedray.analyses.harness import Findings, Request, analysis, count
from fedray.compare.frame import Group, LoadedRun, interval_of
from fedray.compare.paired import Interval
from fedray.errors import UserError
from fedray.models import Pixels
from fedray.models.prompted import GroupedClip
from fedray.records import REPORTED, Metric
from fedray.render.cells import SPREAD, cell, metric_name
from fedray.render.figures import Panel, figure_curves, figure_matrix
from fedray.render.page import Section
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.devices import pick_device

TEXT, IMAGE = "text features", "image features"
PROMPTS, VISUAL = "text prompts", "visual prompts"
WITHIN, SAME, OTHER = "within a client", "between clients, same group", "between clients, others"
COSINE = Metric("cosine of groups", "correlation", None)
SHARE = Metric("share of the clients that drew the group", "share", None, None)


@dataclass(frozen=True)
class Likeness:
    """Cosines between the groups of several clients.

    Attributes:
        clients: ids of N clients.
        cosines: [N, G, N, G]; the mean over the inputs of the groups.
    """

    clients: Sequence[int]
    cosines: Tensor

    @classmethod
    def of(cls, clients: Sequence[int], vectors: Tensor) -> Likeness:
        """Return cosines of each group's features of n classes or images [N, G, n, d]."""
        count, groups, asked, _ = vectors.shape
        unit = F.normalize(vectors.double(), dim=-1).reshape(count * groups, -1)
        return cls(clients, (unit @ unit.T / asked).reshape(count, groups, count, groups))

    @property
    def within(self) -> Tensor:
        """The cosines of the groups of one client, mean over clients [G, G]; Fig. 3."""
        each = range(len(self.clients))
        return torch.stack([self.cosines[client, :, client] for client in each]).mean(0)

    @property
    def between(self) -> Tensor:
        """The cosines of all groups of all clients [N*G, N*G], client by client; Fig. 4."""
        return self.cosines.flatten(2, 3).flatten(0, 1)

    @property
    def names(self) -> list[str]:
        """The names of the rows of `between`: client.group."""
        return [f"{client}.{j}" for client in self.clients for j in range(self.cosines.shape[1])]

    def means(self) -> dict[str, float]:
        """Return the mean over pairs of distinct groups, by where they are; without empty ones."""
        clients, groups = self.cosines.shape[:2]
        one = torch.eye(clients, dtype=torch.bool)[:, None, :, None]
        alike = torch.eye(groups, dtype=torch.bool)[None, :, None, :]
        pairs = {WITHIN: one & ~alike, SAME: ~one & alike, OTHER: ~one & ~alike}
        chosen = {where: self.cosines[mask] for where, mask in pairs.items()}
        return {where: float(found.mean()) for where, found in chosen.items() if len(found)}


Similarities = Mapping[str, Sequence[Mapping[str, Likeness]]]
"""By configuration, for each seed: by what is compared."""


@analysis(
    "groups",
    count("--images", "Test images to compare on.", default=50),
    count("--clients", "Compare the first N clients.", default=10),
    count(
        "--client",
        "The groups of client K alone, with their matrices as numbers (Fig. 3).",
        0,
        metavar="K",
    ),
)
def compare_groups(request: Request) -> Findings:
    """Compare prompt groups within and between clients, and count how often each was drawn."""
    options = request.options
    found = {
        member.label: [
            likenesses(loaded, options["images"], options["clients"], options["client"])
            for loaded in member.runs
        ]
        for member in request.groups
    }
    sections = [similarity_section(found)]
    if options["client"] is not None:
        sections += matrix_sections(request.groups, found)
    sections += [each for member in request.groups for each in frequency_sections(member)]
    return Findings(sections, _figures(request.groups, found, request))


# --- similarity ----------------------------------------------------------------------------------


@torch.no_grad()
def likenesses(
    loaded: LoadedRun, images: int, clients: int, only: int | None = None
) -> dict[str, Likeness]:
    """Return how alike the groups of a finished run are, by what is compared.

    Args:
        loaded: a run of FedMGP.
        images: how many test images to compare image features on.
        clients: how many clients to compare: the first ones of those that took part.
        only: the one client to look at instead.

    Raises:
        UserError: when the run is of another method, or has no checkpoint, or nobody took part, or
            not that client.
    """
    assembly, found = reopen(loaded.folder)
    if not isinstance(assembly.algorithm, FedMGP):
        raise UserError(
            f"{loaded.folder}: {loaded.method} has no groups of prompts to compare; leave the run "
            "out"
        )
    chosen = sorted(found.clients)[:clients]
    if not chosen:
        raise UserError(
            f"{loaded.folder}: nobody has trained yet, so all groups are as they began; go on with "
            f"--resume {loaded.folder}"
        )
    if only is not None:
        if only not in found.clients:
            raise UserError(
                f"{loaded.folder}: client {only} never took part; those that did: "
                f"{', '.join(map(str, sorted(found.clients)[:20]))}"
            )
        chosen = [only]
    device = pick_device(assembly.experiment.gpus)
    runtime = ClientRuntime(assembly, device)
    held = assembly.data.at(found.snapshot.round)
    probe = probe_images(held, images, assembly.streams, device)
    vectors: dict[str, list[Tensor]] = defaultdict(list)
    for client in chosen:
        context = runtime.client(client, found.snapshot.round + 1)
        model = assembly.algorithm.begin(context, found.clients[client], None).model
        assert isinstance(model, GroupedClip)
        for what, features in group_vectors(model, probe).items():
            vectors[what].append(features.cpu())
    return {what: Likeness.of(chosen, torch.stack(each)) for what, each in vectors.items()}


def group_vectors(model: GroupedClip, images: Pixels) -> dict[str, Tensor]:
    """Return each group's text features, image features and prompts: [G, n, d].

    Args:
        model: with one client's prompts.
        images: n images.
    """
    vectors = {}
    if model.text_length:
        vectors[TEXT] = model.text_features()
        vectors[PROMPTS] = model.text.clone().flatten(1).unsqueeze(1)
    if model.visual_length:
        vectors[IMAGE] = model.image_features(images)
        vectors[VISUAL] = model.visual.clone().flatten(1).unsqueeze(1)
    return vectors


def similarity_section(found: Similarities) -> Section:
    """Return the table of mean cosines, by configuration and by what is compared."""
    pairs = (WITHIN, SAME, OTHER)
    rows = []
    for label, runs in found.items():
        for what in runs[0]:
            means = [likeness[what].means() for likeness in runs]
            intervals = [interval_of(mean.get(pair) for mean in means) for pair in pairs]
            rows.append([f"{label}, {what}", *(cell(each, COSINE) for each in intervals)])
    return Section("", (), [COSINE.name, *pairs], rows, [f"Mean {SPREAD} seeds."])


def matrix_sections(members: Sequence[Group], found: Similarities) -> Iterator[Section]:
    """Yield the cosines between the groups of a client, of each configuration's first seed."""
    for member in members:
        for what, likeness in found[member.label][0].items():
            rows = [
                [f"group {j}", *(f"{value:.3f}" for value in row)]
                for j, row in enumerate(likeness.within.tolist())
            ]
            (client,) = likeness.clients
            title = f"{member.label}, seed {member.runs[0].seed}, client {client}, {what}:"
            yield Section("", [title], ["cosine", *(f"group {j}" for j in range(len(rows)))], rows)


# --- selection -----------------------------------------------------------------------------------


def frequencies(member: Group) -> dict[str, dict[int, dict[int, Interval]]]:
    """Return, by modality and group, the share of each round's clients that drew it; Table 13."""
    found: dict[str, dict[int, dict[int, Interval]]] = {}
    for modality in ("text", "visual"):
        curves: dict[int, dict[int, Interval]] = {}
        while curve := member.curve(f"{REPORTED}drawn_{modality}_{len(curves)}"):
            curves[len(curves)] = curve
        if curves:
            found[modality] = curves
    return found


def frequency_sections(member: Group) -> Iterator[Section]:
    """Yield the tables of a configuration: one line a round, one column a group."""
    for modality, curves in frequencies(member).items():
        rows = [
            [str(round_), *(cell(curve.get(round_), SHARE) for curve in curves.values())]
            for round_ in curves[0]
        ]
        means = [[each.mean for each in curve.values()] for curve in curves.values()]
        over_rounds = [Interval.of(sum(mean) / len(mean), 0.0, 1) for mean in means]
        rows.append(["mean", *(cell(mean, SHARE) for mean in over_rounds)])
        title = f"{member.label}, {modality}: {metric_name(SHARE)}, mean {SPREAD} seeds."
        yield Section("", [title], ["round", *(f"group {j}" for j in curves)], rows)


# --- figures -------------------------------------------------------------------------------------


def _figures(members: Sequence[Group], found: Similarities, request: Request) -> list[Path]:
    """Draw the matrices of each configuration's first seed, and its frequencies."""
    files = []
    for index, member in enumerate(members, 1):
        title = f"{member.label}, seed {member.runs[0].seed}"
        for what, likeness in found[member.label][0].items():
            stem = f"groups_{index:02d}_{what.replace(' ', '_')}"
            matrices = {
                "within": (likeness.within, [str(j) for j in range(len(likeness.within))]),
                "between": (likeness.between, likeness.names),
            }
            if len(likeness.clients) == 1:
                del matrices["between"]
            for where, (matrix, names) in matrices.items():
                files.append(request.file(f"{stem}_{where}.png"))
                above = f"{what} {where} clients, cosine: {title}"
                figure_matrix(matrix.tolist(), names, above, files[-1])
        for modality, curves in frequencies(member).items():
            files.append(request.file(f"groups_{index:02d}_drawn_{modality}.png"))
            named = {f"{modality} group {j}": curve for j, curve in curves.items()}
            figure_curves([Panel(SHARE, named)], files[-1], "round")
    return files
