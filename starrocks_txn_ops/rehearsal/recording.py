"""What a rehearsal's server answered, for a file that its user may send in: no secrets, no hosts, no values.

A recording has the form of those that the project's suites play: scenes (one a check), and in each scene a record a
request. Names of the user become variables (`${db}`, `${user}`, `${host.1}`, `${label.1}`). Bodies of loads are left
out; of rows there are only those that say nothing of the user: about the scratch tables, the version and the settings.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starrocks_txn_sink.http.connection import Exchange, HttpResponse
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sql.connection import VERSION_SQL

_MOST_RECORDS = 60
"""Of a scene: the parts about speed and torn reads repeat the same few requests thousands of times."""
_DISTINCT = 4
"""Letters of a name from which on it is hidden inside other words, too: a shorter one would be found everywhere."""
_SECRET_HEADERS = ("authorization", "cookie")
_HARMLESS = (VERSION_SQL, "ADMIN SHOW FRONTEND CONFIG LIKE ")
UNPLAYED = "A rehearsal recorded it, without bodies and values."
"""Why no other server can be asked the same."""
_NUMBERS = re.compile(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b|\b(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}\b")
"""Addresses of IPv4 and IPv6."""


class Recorder:
    """Collects the answers of one rehearsal; several threads may add some."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._database = options.database
        self._hidden = {options.database: "${db}", job: "${job}"}
        if options.username != "root":
            self._hidden[options.username] = "${user}"
        self._scenes: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.hide_hosts([address.host for address in (*options.frontends, *options.query_addresses)])

    def hide_hosts(self, hosts: Iterable[str]) -> None:
        """Replace these names and addresses everywhere, also in what was recorded before."""
        for host in hosts:
            if host and host not in self._hidden:
                number = sum(name.startswith("${host.") for name in self._hidden.values()) + 1
                self._hidden[host] = f"${{host.{number}}}"

    def begin(self, scene: str) -> None:
        """Records belong to `scene` from now on."""
        self._scenes.append({"scene": scene, "unplayed": UNPLAYED, "records": []})

    def exchange(self, exchange: Exchange, response: HttpResponse) -> None:
        """Record an HTTP request and its answer."""
        headers = {
            name: value.decode("latin-1")
            for name, value in exchange.headers.items()
            if name.lower() not in _SECRET_HEADERS
        }
        request = {"method": exchange.method, "path": exchange.path, "headers": headers, "user": "${user}"}
        if exchange.body is not None:
            request["body"] = f"${{{len(exchange.body)} bytes}}"
        if response.location is not None:
            self.hide_hosts(re.findall(r"://(?:[^/@]*@)?\[?([^/:\]]+)", response.location))
        response_record: dict[str, Any] = {"status": response.status, "headers": {}, "body": _document(response.body)}
        if response.location is not None:
            response_record["headers"] = {"location": response.location}
        self._add({"name": exchange.step, "request": request, "answer": response_record})

    def answer(self, statement: str, parameters: Sequence[object], rows: Sequence[Mapping[str, Any]]) -> None:
        """Record a statement and its rows, as far as they say nothing of the user."""
        for row in rows:
            self.hide_hosts(str(row[name]) for name in ("ip", "name") if name in row)
        rows_record: dict[str, Any] = {"columns": list(rows[0]) if rows else [], "count": len(rows)}
        if statement.startswith(_HARMLESS) or self._is_about_scratch(statement, parameters):
            rows_record["rows"] = [[value if value is None else str(value) for value in row.values()] for row in rows]
        self._add({"name": _verb(statement), **_asked(statement, parameters), "answer": rows_record})

    def refusal(self, statement: str, parameters: Sequence[object], text: str) -> None:
        """Record a statement that the server refused, or did not answer."""
        self._add(
            {
                "name": _verb(statement),
                **_asked(statement, parameters),
                "answer": {"error": _number(text), "text": text},
            }
        )

    def document(self, version: str) -> dict[str, Any]:
        """The recording, without the user's names."""
        with self._lock:
            scenes = self._hidden_in(self._scenes)
        return {"server": f"StarRocks {version}", "mark": "real", "about": UNPLAYED, "scenes": scenes}

    def _hidden_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._hidden_in(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self._hidden_in(part) for part in value]
        return self._hide(value) if isinstance(value, str) else value

    def _hide(self, text: str) -> str:
        """`text` with variables for names, the longest first, because a name may be a part of another one."""
        words = "|".join(map(_word, sorted(self._hidden, key=len, reverse=True)))
        return _NUMBERS.sub("${host}", re.sub(words, lambda match: self._hidden[match[0]], text))

    def _is_about_scratch(self, statement: str, parameters: Sequence[object]) -> bool:
        return f"`{self._database}`" in statement or (self._database in parameters and "LABEL" in statement)

    def _add(self, record: dict[str, Any]) -> None:
        with self._lock:
            if not self._scenes:
                self._scenes.append({"scene": "set up", "unplayed": UNPLAYED, "records": []})
            records = self._scenes[-1]["records"]
            if len(records) < _MOST_RECORDS:
                record["name"] = f"{len(records) + 1} {record['name']}"
                records.append(record)
            else:
                self._scenes[-1]["left_out"] = self._scenes[-1].get("left_out", 0) + 1


def _asked(statement: str, parameters: Sequence[object]) -> dict[str, Any]:
    return {"statement": statement} | ({"parameters": [str(value) for value in parameters]} if parameters else {})


def _number(text: str) -> int:
    """The server's number at the end of an error's text; 0 without one."""
    match = re.search(r"\(([0-9]+)\)$", text)
    return int(match[1]) if match else 0


def _word(name: str) -> str:
    """The pattern of a name of the user."""
    word = re.escape(name)
    return word if len(name) >= _DISTINCT else rf"(?<![a-zA-Z0-9]){word}(?![a-zA-Z0-9])"


def _verb(statement: str) -> str:
    return " ".join(statement.split()[:2])


def _document(body: bytes) -> Any:
    """The JSON object of a reply, or the kind of another body."""
    try:
        document = json.loads(body)
    except ValueError:
        return f"${{{len(body)} bytes}}"
    return document if isinstance(document, dict) else "${*}"
