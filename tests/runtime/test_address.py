"""Addresses of Ray: each wrong one is refused in seconds, with a sentence that names its cause."""

from __future__ import annotations

import json
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated.gcs_service_pb2 import InternalKVGetReply
from ray.core.generated.gcs_service_pb2_grpc import (
    InternalKVGcsServiceServicer,
    add_InternalKVGcsServiceServicer_to_server,
)

from fedray.cli.doctor import findings_of, ray_cluster
from fedray.errors import UserError
from fedray.runtime import address
from fedray.runtime.address import check_address
from fedray.runtime.cluster import connect

SAME = {"ray_version": ray.__version__, "python_version": platform.python_version()}
Serve = Callable[..., str]


class Head(InternalKVGcsServiceServicer):
    """The part of a Ray head that tells its version to whoever has the token."""

    def __init__(self, metadata: bytes, token: str | None) -> None:
        self._reply = InternalKVGetReply(value=metadata)
        self._token = token

    def InternalKVGet(self, request: Any, context: grpc.ServicerContext) -> InternalKVGetReply:
        sent = dict(context.invocation_metadata()).get("authorization")
        if self._token is not None and sent != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token is missing or incorrect")
        return self._reply


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(version, token=...)` starts such a head and returns its address."""
    servers = []

    def begin(metadata: Any = SAME, token: str | None = None, host: str = "127.0.0.1") -> str:
        server = grpc.server(ThreadPoolExecutor(1))
        content = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
        add_InternalKVGcsServiceServicer_to_server(Head(content, token), server)
        port = server.add_insecure_port(f"{host}:0")
        server.start()
        servers.append(server)
        return f"{host}:{port}"

    yield begin
    for server in servers:
        server.stop(None)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A home without a token; answers are waited for one second, so that tests are fast."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(address, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(address, "other_cluster", lambda: None)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def refusal(of: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sentence of a run, which doctor says, too."""
    with pytest.raises(UserError) as refused:
        check_address(of)
    monkeypatch.setenv("RAY_ADDRESS", of)
    [finding] = findings_of("Ray", ray_cluster)
    assert (finding.state, f"{finding.found}; {finding.cure}") == ("missing", str(refused.value))
    return str(refused.value)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ("ray://127.0.0.1:10001", "an address of Ray Client, which fedray does not support"),
        ("http://127.0.0.1:8265", "the address of a web page such as Ray's dashboard"),
        ("https://ray.example.org", "the address of a web page such as Ray's dashboard"),
        ("127.0.0.1", r"is not HOST:PORT; write for example 127\.0\.0\.1:6379"),
        ("head", "is not HOST:PORT; write for example head:6379"),
        ("localhost:abc", "is not HOST:PORT"),
        ("localhost:0", "is not HOST:PORT"),
        ("localhost:65536", "is not HOST:PORT"),
        (":6379", "is not HOST:PORT; write for example localhost:6379"),
        ("auto", "no Ray cluster answers on this machine; start one"),
        ("no-such-host.invalid:6379", "no Ray cluster answers at RAY_ADDRESS=no-such-host"),
    ],
)
def test_an_address_in_another_form_is_refused_before_ray_is_asked(monkeypatch, form, sentence):
    with pytest.raises(UserError, match=rf"RAY_ADDRESS={form}.*|{sentence}") as refused:
        check_address(form)
    assert refused.match(sentence)
    refusal(form, monkeypatch)


@pytest.mark.slow
def test_nobody_listens(monkeypatch):
    of = f"127.0.0.1:{closed_port()}"
    assert f"no Ray cluster answers at RAY_ADDRESS={of} (Connection refused)" in refusal(
        of, monkeypatch
    )


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        of = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        assert "answers at RAY_ADDRESS" in refusal(of, monkeypatch)
    assert time.monotonic() - start < 60  # Ray itself waits for minutes


@pytest.mark.slow
def test_a_web_server_is_not_ray(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sentence = refusal(f"127.0.0.1:{server.server_port}", monkeypatch)
        server.shutdown()
    assert "a server answers at RAY_ADDRESS" in sentence
    assert "not as Ray" in sentence


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ({**SAME, "ray_version": "2.50.0"}, f"runs Ray 2.50.0, this process Ray {ray.__version__}"),
        ({**SAME, "python_version": "3.9.1"}, "runs Python 3.9.1, this process Python 3."),
    ],
)
def test_another_version_is_named(serve, monkeypatch, there, sentence):
    assert sentence in refusal(serve(there), monkeypatch)


@pytest.mark.parametrize("token", [None, "other"])
def test_a_token_that_is_missing_or_wrong_is_named(serve, monkeypatch, token):
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    assert "refuses this process's token" in refusal(serve(token="right"), monkeypatch)


@pytest.mark.parametrize("place", ["variable", "file", "home"])
def test_the_token_is_found_where_ray_looks(serve, monkeypatch, tmp_path, place):
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    if place == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    else:
        file.write_text("right\n")
    if place == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file.rename(tmp_path / "elsewhere")))
    of = serve(token="right")
    assert check_address(of) == of


@pytest.mark.parametrize(
    "metadata", [SAME, {**SAME, "python_version": f"{platform.python_version()}rc1"}, {}, b""]
)
def test_a_cluster_of_this_version_is_joined(serve, monkeypatch, metadata):
    of = serve(metadata)
    monkeypatch.setenv("RAY_ADDRESS", of)
    joined = []
    monkeypatch.setattr(ray, "init", lambda **options: joined.append(options))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "nodes", list)
    connect()
    assert len(joined) == 1
    [finding] = ray_cluster()
    assert finding.state == "ok"


def test_the_cluster_of_this_machine_is_found(serve, monkeypatch):
    of = serve()
    monkeypatch.setattr(address, "other_cluster", lambda: of)
    assert check_address("auto") == of


def test_an_address_of_ipv6(serve):
    of = serve(host="[::1]")
    assert check_address(of) == of


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError, ValueError])
def test_what_ray_itself_refuses_is_one_sentence(serve, monkeypatch, error):
    def refuse(**options: Any) -> None:
        raise error("Version mismatch:\nmore lines")

    monkeypatch.setenv("RAY_ADDRESS", serve())
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=r"cannot join .* RAY_ADDRESS=.* \(Version mismatch:\)"):
        connect()
