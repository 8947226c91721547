"""Feature skew: each domain belongs to one client, or to several clients with label skew."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from fedray.base.errors import UserError
from fedray.data.partitions import Annotations, Indices, partitions
from fedray.data.partitions.dirichlet import Dirichlet, redraw_until

_log = logging.getLogger(__name__)


@partitions.add
class DomainClients(Dirichlet):
    """Feature skew: client i holds images of domain i // (N/D); with N = D, all of them.

    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR
    2021 (N = D); also FedGLCL. With several clients per domain, each class of the domain is divided
    among them by Dir(alpha), with the parameters of `dirichlet`.
    """

    name = "domains"
    paper = "Li et al., FedBN, ICLR 2021"

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels, domains = annotations
        if domains is None:
            raise UserError(
                "data.partition=domains, but the source has no domains; use data with a folder per "
                "domain or a column `domain`, or choose another partition"
            )
        present = np.unique(domains.ids)
        per_domain = _clients_per_domain(clients, [domains.names[i] for i in present])
        parts: list[Indices] = []
        fields = self.model_fields_set if per_domain == 1 else ()
        _log_unused(tuple(f"data.partition.{name}" for name in fields))
        for domain in present:
            members = np.flatnonzero(domains.ids == domain).astype(np.int64)
            if per_domain == 1:
                parts.append(members)
                continue
            name = f"domain {domains.names[domain]}"
            inside = redraw_until(labels[members], per_domain, self, rng, name)
            parts += [members[part] for part in inside]
        return parts


@cache
def _log_unused(keys: tuple[str, ...]) -> None:
    """Log once per process that parameters divide no domain."""
    if keys:
        _log.warning("%s: no effect, because each domain has one client", ", ".join(sorted(keys)))


def _clients_per_domain(clients: int, domains: list[str]) -> int:
    per_domain, remainder = divmod(clients, len(domains))
    if remainder or not per_domain:
        raise UserError(
            f"data.clients={clients} cannot be divided evenly among {len(domains)} domains "
            f"({', '.join(domains)}); set data.clients to a multiple of {len(domains)}"
        )
    return per_domain
