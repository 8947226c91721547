"""Judge the address of a Ray cluster before Ray connects, which may take 14 minutes to fail.

The module reads one entry of the cluster's key-value store, by Ray's own protocol; see
tests/runtime/test_private_names.py.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from typing import Any

from fedray.errors import UserError, shown
from fedray.runtime.local_ray import other_cluster, token_path

ANSWER_SECONDS = 4.0
"""Time for a connection, and again for the answer."""
GCS_PORT = 6379
JOB = "submit a job instead: ray job submit --address http://HOST:8265 -- python -m fedray.run ..."


def check_address(address: str) -> str:
    """Return HOST:PORT of the cluster at an address, which answers and has this version of Ray.

    Args:
        address: the value of RAY_ADDRESS: HOST:PORT, or "auto" for the cluster of this machine.

    Raises:
        UserError: within ten seconds, if a run cannot join a cluster at this address.
    """
    name = (
        f"RAY_ADDRESS={shown(address)}" if not address.isprintable() else f"RAY_ADDRESS={address}"
    )
    if address == "auto":
        found = other_cluster()
        if found is None:
            raise UserError(
                f"{name}: no Ray cluster answers on this machine; start one (ray start --head), "
                "or unset RAY_ADDRESS to use a local Ray"
            )
        address = found
    host, port = _host_and_port(address, name)
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {name} ({error.strerror or error}); start it, correct the "
            "address, or unset RAY_ADDRESS to use this machine"
        ) from None
    _check_version(_cluster(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", name), name)
    return address


def _host_and_port(address: str, name: str) -> tuple[str, int]:
    scheme, separator, _ = address.rpartition("://")
    if scheme == "ray":
        raise UserError(
            f"{name} is an address of Ray Client, which fedray does not support; on a machine of "
            f"the cluster use HOST:{GCS_PORT}, from another one {JOB}"
        )
    if separator:
        raise UserError(
            f"{name} is the address of a web page such as Ray's dashboard; on a machine of the "
            f"cluster use HOST:{GCS_PORT} without {scheme}://, from another one {JOB}"
        )
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    example = host or ("localhost" if port.isdecimal() else port)
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(
            f"{name} is not HOST:PORT; write for example {example}:{GCS_PORT}, "
            "or auto for the cluster of this machine"
        )
    return host, int(port)


def _cluster(target: str, name: str) -> dict[str, Any]:
    """Return what the cluster at HOST:PORT says about itself; {} with TLS, which Ray checks."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("0", "", "false"):
        return {}
    import grpc
    from ray.core.generated.gcs_service_pb2 import InternalKVGetRequest
    from ray.core.generated.gcs_service_pb2_grpc import InternalKVGcsServiceStub

    request = InternalKVGetRequest(key=b"CLUSTER_METADATA", namespace=b"cluster")
    token = [("authorization", f"Bearer {_token()}")]
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(target, options) as channel:
        get = InternalKVGcsServiceStub(channel).InternalKVGet
        try:
            reply = get(request, timeout=ANSWER_SECONDS, wait_for_ready=True, metadata=token)
            metadata: dict[str, Any] = json.loads(reply.value or b"{}")
            return metadata
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise UserError(
                    f"the Ray cluster at {name} refuses this process's token; set RAY_AUTH_MODE="
                    "token, and RAY_AUTH_TOKEN_PATH to a file with the cluster's token"
                ) from None
        except ValueError:
            pass
    raise UserError(
        f"a server answers at {name}, but not as Ray; use the port of Ray's head, {GCS_PORT} "
        "unless it was started with another one"
    )


def _token() -> str:
    """Return the token that Ray would send; "" without one."""
    try:
        return os.environ.get("RAY_AUTH_TOKEN") or token_path().read_text("utf-8").strip()
    except (OSError, ValueError, UserError):
        return ""


def _check_version(cluster: dict[str, Any], name: str) -> None:
    """Refuse a cluster with another version of Ray or Python, which Ray cannot join."""
    import ray

    python = platform.python_version()
    for what, there, here, length in (
        ("Ray", cluster.get("ray_version"), ray.__version__, 3),
        ("Python", cluster.get("python_version"), python, 2),
    ):
        if there is not None and str(there).split(".")[:length] != here.split(".")[:length]:
            raise UserError(
                f"the Ray cluster at {name} runs {what} {there}, this process {what} {here}; use "
                "an environment with the cluster's version, or unset RAY_ADDRESS to use this "
                "machine"
            )
