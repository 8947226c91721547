"""Feature skew: a domain is a client, or several clients with label skew inside."""

from __future__ import annotations

import numpy as np

from fedray.data.partitions import Indices, Partition, partitions
from fedray.data.partitions._per_class import redraw_until
from fedray.data.partitions.dirichlet import DirichletParams
from fedray.errors import UserError


class DomainsParams(DirichletParams):
    """Knobs of `domains`: those of `dirichlet`, inside every domain that has several clients."""


@partitions.add
class DomainClients(Partition[DomainsParams]):
    """Client i holds images of domain i // (N/D); with N = D all of them (FedBN, FedGLCL).

    With several clients a domain, its images are dealt to them class by class by Dir(alpha).
    """

    name = "domains"
    Params = DomainsParams

    def split(
        self, labels: Indices, clients: int, params: DomainsParams, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal domain by domain, in the order of their names; see `Partition.split`."""
        if self.domains is None:
            raise UserError(
                "data.partition=domains, but the source knows no domains; use data with a folder "
                "or a column `domain` for each, or another partition"
            )
        ids = self.domains.ids
        present = np.unique(ids)
        each, rest = divmod(clients, len(present))
        if rest or not each:
            names = ", ".join(self.domains.names[i] for i in present)
            raise UserError(
                f"data.clients={clients} cannot be dealt evenly to {len(present)} domains "
                f"({names}); set data.clients to a multiple of {len(present)}"
            )
        owned: list[Indices] = []
        for domain in present:
            members = np.flatnonzero(ids == domain).astype(np.int64)
            if each == 1:
                owned.append(members)
                continue
            parts = redraw_until(
                labels[members],
                each,
                params.alpha,
                rng,
                min_samples=params.min_samples,
                max_draws=params.max_draws,
                official=False,
                name=f"domain {self.domains.names[domain]}",
            )
            owned += [members[part] for part in parts]
        return owned
