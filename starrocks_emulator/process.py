"""The emulator as a child process, so that it can be killed and started again on the same data and ports."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import requests

from starrocks_emulator.server import RunningServer
from starrocks_emulator.settings import EmulatorError, Settings

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_CALL_SECONDS = 10.0


class EmulatorProcessFailed(EmulatorError):
    """The emulator's process did not come up, or did not end; its own messages are part of this one."""


class EmulatorProcess(RunningServer):
    """Start, stop, kill and restart one emulator. It ends with this process, because its standard input ends then.

    After the first start the ports stay the same. A context manager: entering starts, leaving stops.
    """

    def __init__(self, data_dir: Path, settings: Settings | None = None, *, fault_plan: object = None) -> None:
        self.settings = settings or Settings()
        self.data_dir = data_dir
        self._fault_plan = fault_plan
        self._process: subprocess.Popen[bytes] | None = None
        self._where: dict[str, Any] = {}
        self._errors: IO[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it listens. Raises `EmulatorProcessFailed`."""
        if self.running:
            return
        with tempfile.TemporaryDirectory() as secrets:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._process = subprocess.Popen(
                self._command(Path(secrets)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
            try:
                self._where = json.loads(self._first_line(time.monotonic() + _START_SECONDS))
            except BaseException:
                self.kill()
                raise

    def _command(self, secrets: Path) -> list[str]:
        settings = self.settings
        password = secrets / "password"
        password.touch(0o600)
        password.write_text(settings.password)
        options: dict[str, object] = {
            "--data-dir": self.data_dir,
            "--host": settings.host,
            "--fe-port": self._where.get("fe_port", settings.fe_port),
            "--be-port": self._where.get("be_port", settings.be_port),
            "--query-port": self._where.get("query_port", settings.query_port),
            "--generation": settings.generation.value,
            "--backends": settings.backends,
            "--cores": settings.cores,
            "--followers": settings.followers,
            "--row-order": settings.row_order.value,
            "--row-order-seed": settings.row_order_seed,
            "--limits": json.dumps(asdict(settings.limits)),
            "--user": settings.user,
            "--password-file": password,
        }
        if self._fault_plan is not None:
            plan = secrets / "faults.json"
            plan.write_text(json.dumps(self._fault_plan))
            options["--fault-plan"] = plan
        words = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-m", "starrocks_emulator", *words, "--stop-at-eof", "--json"]

    def _first_line(self, deadline: float) -> bytes:
        process = self._started()
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if selector.select(max(0.0, deadline - time.monotonic())):
                line = process.stdout.readline()
                if line:
                    return line
        raise EmulatorProcessFailed(f"The emulator did not come up: {self._messages()}")

    def _messages(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read(4000).decode(errors="replace").strip()

    def stop(self) -> int | None:
        """End it cleanly by SIGTERM; its exit code, None when it was not running."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def kill(self) -> None:
        """`kill -9`: no farewell, nothing flushed."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def restart(self) -> None:
        """Start again on the same data and ports, stopping it first if it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the process is there and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def _reap(self) -> int:
        process = self._started()
        try:
            code = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait(_STOP_SECONDS)
            raise EmulatorProcessFailed(f"The emulator did not end: {self._messages()}") from error
        finally:
            for stream in (process.stdin, process.stdout, self._errors):
                if stream is not None:
                    stream.close()
            self._process = self._errors = None
        return code

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EmulatorProcessFailed("The emulator has not been started. Call start() first.")
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process is there, also while it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id; raises EmulatorProcessFailed while there is none."""
        return self._started().pid

    @property
    def load_url(self) -> str:
        """Where the leading frontend answers HTTP; known from the first start on, as all addresses."""
        return str(self._where["load_url"])

    @property
    def query_url(self) -> str:
        """Where the leading frontend answers SQL."""
        return str(self._where["query_url"])

    @property
    def fe_port(self) -> int:
        """HTTP port of the leading frontend."""
        return int(self._where["fe_port"])

    @property
    def be_port(self) -> int:
        """HTTP port of the first backend."""
        return int(self._where["be_port"])

    @property
    def query_port(self) -> int:
        """MySQL port of the leading frontend."""
        return int(self._where["query_port"])

    def faults(self, plan: object) -> None:
        """Put a fault plan in force (its fields: `faults`); `{}` ends all faults and releases held commits."""
        if plan == {}:
            self._call("DELETE", "faults")
        else:
            self._call("POST", "faults", plan)

    def fault_report(self) -> Mapping[str, Any]:
        """The rules in force, each with how often it matched and was applied."""
        return self._call("GET", "faults")

    @property
    def follower_query_ports(self) -> list[int]:
        """MySQL ports of the followers."""
        return [int(port) for port in self._where["follower_query_ports"]]

    def catch_up(self) -> None:
        """Let the followers' query ports show what is visible now."""
        self._call("POST", "catch_up")

    def release(self) -> list[int]:
        """Let held commits become visible; their transaction ids."""
        return list(self._call("POST", "release")["released"])

    def _call(self, method: str, name: str, document: object = None) -> Mapping[str, Any]:
        answer = requests.request(
            method,
            f"{self.load_url}/_emulator/{name}",
            json=document,
            auth=(self.settings.user, self.settings.password),
            timeout=_CALL_SECONDS,
        )
        reply: Mapping[str, Any] = answer.json()
        if answer.status_code != 200:
            raise EmulatorProcessFailed(
                f"The emulator refused the fault plan: {reply.get('error', answer.status_code)}"
            )
        return reply
