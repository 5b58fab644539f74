"""Containers as far as they are needed here: start one, find its ports, stop it. Docker is one way.

Nothing of this project needs Docker but this module.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

NO_ENGINE = "No Docker engine answers here, so nothing runs against a real StarRocks."


class NotStarted(Exception):
    """The engine did not start a container; the text is its reason."""


class Running(Protocol):
    """A container that was started."""

    @property
    def host(self) -> str:
        """Where its ports are published."""

    def port(self, inner: int) -> int:
        """The published port of `inner`."""

    def log_end(self) -> str:
        """The end of its log, for an error."""

    def stop(self) -> None:
        """Stop and remove it."""


class Engine(Protocol):
    """Starts containers."""

    def start(self, image: str, ports: Sequence[int], environment: Mapping[str, str]) -> Running:
        """Start `image` with `ports` published on free ports of the loopback; raises NotStarted."""


class DockerEngine:
    """Containers of a Docker engine, through testcontainers, which also removes them when this process dies."""

    @staticmethod
    def answers() -> bool:
        """Whether an engine is there."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # its client forgets a socket that cannot connect
            answers = _pinged()
            gc.collect()
        return answers

    def start(self, image: str, ports: Sequence[int], environment: Mapping[str, str]) -> Running:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
        from testcontainers.core.container import DockerContainer

        free: dict[str, Any] = {f"{inner}/tcp": ("127.0.0.1", None) for inner in ports}  # Docker chooses the outer ones
        try:
            container = DockerContainer(image)
            container.ports.update(free)
            for name, value in environment.items():
                container.with_env(name, value)
            container.start()
        except (DockerException, RequestException, OSError) as error:
            raise NotStarted(f"The Docker engine did not start {image}: {error}") from error
        return DockerRunning(container)


class DockerRunning:
    """A container of testcontainers."""

    def __init__(self, container: object) -> None:
        self._container = container

    @property
    def host(self) -> str:
        return str(self._container.get_container_host_ip())  # type: ignore[attr-defined]

    def port(self, inner: int) -> int:
        return int(self._container.get_exposed_port(inner))  # type: ignore[attr-defined]

    def log_end(self) -> str:
        out, err = self._container.get_logs()  # type: ignore[attr-defined]
        return bytes(out + err)[-2000:].decode(errors="replace")

    def stop(self) -> None:
        self._container.stop()  # type: ignore[attr-defined]


def _pinged() -> bool:
    from docker.api import APIClient
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env
    from requests.exceptions import RequestException

    try:
        with contextlib.closing(APIClient(version="1.41", timeout=5, **kwargs_from_env())) as client:
            return bool(client.ping())
    except (DockerException, RequestException, OSError):
        return False
