"""A Docker engine in this process, as far as a client needs one to run StarRocks: its container is the emulator.

It speaks the engine's HTTP API, so that the client, its containers' ports and their end are the real ones' code.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings

API = "1.50"
_STDOUT = 1


class Watchdog:
    """The container that removes what its client leaves behind, once the client's connection has ended."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self.ports = {"8080/tcp": self._listener.getsockname()[1]}
        self.log = b"ryuk Started!\n"

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # removed before a client came
            return
        with client:
            while client.recv(4096):
                pass
        self._engine.reaped.set()

    def stop(self) -> None:
        self._listener.close()


class Server:
    """The container of a StarRocks."""

    def __init__(self, folder: Path) -> None:
        self.emulator = Emulator(folder, Settings())
        self.emulator.start()
        listening = {8030: self.emulator.fe_port, 9030: self.emulator.query_port, 8040: self.emulator.be_port}
        self.ports = {f"{inner}/tcp": outer for inner, outer in listening.items()}
        self.log = b"StarRocks has started\n"

    def stop(self) -> None:
        self.emulator.stop()


@dataclass
class Container:
    """What a client has created; `inside` runs once it has started it."""

    image: str
    bindings: dict[str, list[dict[str, str]]]
    inside: Watchdog | Server | None = None


@dataclass
class FakeEngine:
    """The engine, at `address` until its `with` ends; `data` is where its containers keep their files.

    It has no image at first. `pulled`, `containers` and `removed` say what its clients did; `missing` names images that
    no registry has.
    """

    data: Path
    missing: frozenset[str] = frozenset()
    pulled: list[str] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    reaped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> FakeEngine:
        self._http = _HTTPServer(self)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        for name in list(self.containers):
            self.remove(name)

    @property
    def address(self) -> str:
        """The value of DOCKER_HOST."""
        return f"tcp://127.0.0.1:{self._http.server_address[1]}"

    def create(self, body: dict[str, Any]) -> str:
        name = secrets.token_hex(32)
        self.containers[name] = Container(body["Image"], body.get("HostConfig", {}).get("PortBindings") or {})
        return name

    def start(self, name: str) -> None:
        container = self.containers[name]
        is_watchdog = container.image.startswith("testcontainers/ryuk:")
        container.inside = Watchdog(self) if is_watchdog else Server(self.data / name[:12])

    def remove(self, name: str) -> None:
        container = self.containers.pop(name)
        self.removed.append(container.image)
        if container.inside is not None:
            container.inside.stop()

    def described(self, name: str) -> dict[str, Any]:
        """`docker inspect`."""
        container = self.containers[name]
        inside = container.inside
        published = {
            inner: [{"HostIp": binding["HostIp"] or "0.0.0.0", "HostPort": str(inside.ports[inner])}]
            for inner, (binding, *_) in container.bindings.items()
            if inside is not None
        }
        state = {"Status": "created" if inside is None else "running", "Running": inside is not None}
        return {
            "Id": name,
            "Name": f"/{name[:12]}",
            "Image": container.image,
            "State": state,
            "Config": {"Image": container.image, "Tty": False, "Labels": {}},
            "HostConfig": {"NetworkMode": "bridge", "LogConfig": {"Type": "json-file"}},
            "NetworkSettings": {"Ports": published, "Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
        }


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTPServer

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        where = urlsplit(self.path)
        path = re.sub(r"^/v[0-9.]+", "", unquote(where.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[-1] for name, values in parse_qs(where.query).items()}
        try:
            status, content = self._done(self.command, path, query, json.loads(body) if body else {})
        except KeyError as error:
            status, content = 404, {"message": f"No such container: {error.args[0]}"}
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json"
        )
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _done(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        engine = self.server.engine
        if path == "/_ping":
            return 200, b"OK"
        if path == "/version":
            return 200, {"ApiVersion": API, "MinAPIVersion": "1.24", "Version": "28.2.2", "Os": "linux"}
        if path == "/networks":
            return 200, []
        if (image := re.fullmatch(r"/images/(.+)/json", path)) is not None:
            is_pulled = image[1] in engine.pulled
            return (
                (200, {"Id": f"sha256:{image[1]}", "RepoTags": [image[1]]}) if is_pulled else (404, _no_image(image[1]))
            )
        if (method, path) == ("POST", "/images/create"):
            return self._pulled(f"{query['fromImage']}:{query.get('tag', 'latest')}")
        if (method, path) == ("POST", "/containers/create"):
            return 201, {"Id": engine.create(body), "Warnings": []}
        name, _, verb = path.removeprefix("/containers/").partition("/")
        return self._of_container(method, name, verb)

    def _pulled(self, image: str) -> tuple[int, Any]:
        engine = self.server.engine
        if image in engine.missing:
            return 404, {"message": f"manifest for {image} not found: manifest unknown: manifest unknown"}
        engine.pulled.append(image)
        return 200, json.dumps({"status": f"Status: Downloaded newer image for {image}"}).encode() + b"\r\n"

    def _of_container(self, method: str, name: str, verb: str) -> tuple[int, Any]:
        engine = self.server.engine
        if method == "DELETE":
            engine.remove(name)
            return 204, b""
        if verb == "start":
            engine.start(name)
            return 204, b""
        if verb == "logs":
            inside = engine.containers[name].inside
            log = b"" if inside is None else inside.log
            return 200, struct.pack(">BxxxL", _STDOUT, len(log)) + log
        return 200, engine.described(name)


def _no_image(image: str) -> dict[str, str]:
    return {"message": f"No such image: {image}"}
