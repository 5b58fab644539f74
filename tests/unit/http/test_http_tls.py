"""TLS with an authority of one's own and a certificate of the client."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import NotSent, ReplyLost
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status
from tests.support.http_peer import Peer, says

OK = {"Status": "OK", "Message": ""}

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server` and `client`, each a self-signed certificate (.pem) and its key (.key)."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem", "-days", "2"]
        command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def server(certificates: Path, *, asks_client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if asks_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "client.pem")
    return context


def begin(url: str, **options: Any) -> Reply:
    transport = HttpTransport(SinkOptions(load_url=url, database="shop", delivery="at-least-once", **options))
    try:
        return transport.send(Request(Operation.BEGIN, "shop", "job-1"), Deadline.after(20, SystemClock()))
    finally:
        transport.close()


def test_a_server_of_the_named_authority_is_trusted(certificates: Path) -> None:
    with Peer(says(OK), tls=server(certificates)) as frontend:
        assert begin(frontend.url, tls_ca=str(certificates / "server.pem")).status is Status.OK


def test_a_server_of_another_authority_sees_no_request(certificates: Path) -> None:
    with Peer(says(OK), tls=server(certificates)) as frontend:
        for trusted in ({}, {"tls_ca": str(certificates / "client.pem")}):
            with pytest.raises(NotSent, match="TLS handshake"):
                begin(frontend.url, **trusted)
        assert frontend.got == []


def test_the_clients_certificate_is_shown(certificates: Path) -> None:
    trusted = {"tls_ca": str(certificates / "server.pem")}
    own = {"tls_certificate": str(certificates / "client.pem"), "tls_key": str(certificates / "client.key")}
    with Peer(says(OK), tls=server(certificates, asks_client=True)) as frontend:
        assert begin(frontend.url, **trusted, **own).status is Status.OK
        with pytest.raises((NotSent, ReplyLost)):
            begin(frontend.url, **trusted)
        assert len(frontend.got) == 1
