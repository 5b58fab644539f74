"""Recordings of a server's answers: files that a person can read and compare, and that the suites play.

A file holds scenes, a scene holds records, and a record is one request with its answer:

- HTTP: `request` (method, path or URL, headers, user, body) and `answer` (status, headers, body; JSON as JSON);
- SQL: `statement` (user, database) and `answer` (columns, rows, or the number and text of an error).

`judged` is what the sink makes of the answer (`tests.support.judgement`). The scenes of a file are one play: its
records are sent in their order to one server. `unplayed` of a scene or a record says why no other server can answer the
same.

**Variables** stand for what differs between runs. `${label.1}` in a request is a fresh label; `${txn.1}` in an answer
takes the first value that it meets, and every later one must be equal; `${*}` stands for anything.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

FOLDER = Path(__file__).parents[1] / "contract" / "recordings"
PATIENCE = 30.0
_VARIABLE = re.compile(r"\$\{([^{}]+)\}")
_NUMBERED = ("txn.", "task.")
_RECORDED_HEADERS = ("content-type", "location", "www-authenticate")

Record = dict[str, Any]
Recording = dict[str, Any]


def recordings() -> list[Path]:
    """The files of recorded answers."""
    return sorted(FOLDER.glob("*/*.json"))


def read(path: Path) -> Recording:
    document: Recording = json.loads(path.read_text(encoding="utf-8"))
    return document


def write(path: Path, document: Recording) -> None:
    """Write `document` with one line for each small value, so that a difference shows as few lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def records(document: Recording) -> Iterator[tuple[str, Record]]:
    """Every record with its name, which begins with the scene's."""
    for scene in document["scenes"]:
        for record in scene["records"]:
            yield f"{scene['scene']}: {record['name']}", record


# --- variables --------------------------------------------------------------------------------------------------------


@dataclass
class Variables:
    """The values of one play."""

    run: str = field(default_factory=lambda: secrets.token_hex(4))
    values: dict[str, str] = field(default_factory=dict)

    def filled(self, value: Any) -> Any:
        """`value` of a request with its variables replaced; a label is made when it is first named."""
        if isinstance(value, dict):
            return {name: self.filled(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.filled(part) for part in value]
        return _VARIABLE.sub(self._value, value) if isinstance(value, str) else value

    def _value(self, found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("label."):
            self.values.setdefault(name, f"rec_{name.removeprefix('label.')}_{self.run}")
        return self.values[name]

    def differences(self, expected: Any, answer: Any, place: str = "answer") -> list[str]:
        """Where `answer` differs from `expected`; binds the variables that it meets first."""
        if isinstance(expected, dict) and isinstance(answer, dict):
            names = [*expected, *(name for name in answer if name not in expected)]
            missing = object()
            found = ((name, expected.get(name, missing), answer.get(name, missing)) for name in names)
            return [
                text
                for name, left, right in found
                for text in (
                    [f"{place}.{name}: {'missing' if right is missing else 'unexpected'}"]
                    if missing in (left, right)
                    else self.differences(left, right, f"{place}.{name}")
                )
            ]
        if isinstance(expected, list) and isinstance(answer, list):
            if len(expected) != len(answer):
                return [f"{place}: {len(answer)} items instead of {len(expected)}"]
            pairs = enumerate(zip(expected, answer, strict=True))
            return [
                text for number, (left, right) in pairs for text in self.differences(left, right, f"{place}[{number}]")
            ]
        if isinstance(expected, str) and _VARIABLE.search(expected) and answer is not None:
            return [] if self._binds(expected, str(answer)) else [f"{place}: {answer!r} instead of {expected!r}"]
        equal = expected == answer and type(expected) is type(answer)
        return [] if equal else [f"{place}: {answer!r} instead of {expected!r}"]

    def _binds(self, expected: str, text: str) -> bool:
        groups: dict[str, str] = {}
        pattern = ""
        for number, part in enumerate(_VARIABLE.split(expected)):
            pattern += re.escape(part) if number % 2 == 0 else self._pattern(part, groups)
        found = re.fullmatch(pattern, text, re.DOTALL)
        if found is not None:
            self.values.update({name: found[group] for name, group in groups.items()})
        return found is not None

    def _pattern(self, name: str, groups: dict[str, str]) -> str:
        if name == "*":
            return ".*?"
        if name in self.values:
            return re.escape(self.values[name])
        if name in groups:
            return f"(?P={groups[name]})"
        groups[name] = f"v{len(groups)}"
        return f"(?P<{groups[name]}>{'-?[0-9]+' if name.startswith(_NUMBERED) else '.+?'})"


# --- asking a server --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A server that can be asked. `rewrites` maps addresses that it names to those that can be reached from here."""

    load_url: str
    query_url: str
    rewrites: Mapping[str, str] = field(default_factory=dict)

    def answer(self, record: Record) -> dict[str, Any]:
        """The server's answer to a record whose variables are filled."""
        return self._sql(record) if "statement" in record else self._http(record["request"])

    def _http(self, request: Mapping[str, Any]) -> dict[str, Any]:
        where = urlsplit(request["path"] if "://" in request["path"] else self.load_url + request["path"])
        netloc = self.rewrites.get(where.netloc, where.netloc)
        headers = dict(request.get("headers", {}))
        if (user := request.get("user")) is not None:
            word = f"{user}:{request.get('password', '')}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(word).decode()
        body = request.get("body")
        with contextlib.closing(http.client.HTTPConnection(netloc, timeout=PATIENCE)) as connection:
            path = where.path + (f"?{where.query}" if where.query else "")
            connection.request(request["method"], path, None if body is None else body.encode(), headers)
            response = connection.getresponse()
            text = response.read().decode()
        return {
            "status": response.status,
            "headers": {name: value for name in _RECORDED_HEADERS if (value := response.getheader(name)) is not None},
            "body": _document(text),
        }

    def _sql(self, record: Record) -> dict[str, Any]:
        where = urlsplit(self.query_url)
        try:
            connection = pymysql.connect(
                host=where.hostname or "127.0.0.1",
                port=where.port or 9030,
                user=record.get("user", "root"),
                password=record.get("password", ""),
                database=record.get("database"),
                autocommit=True,
                connect_timeout=10,
                read_timeout=int(PATIENCE),
                ssl_disabled=True,
            )
            with contextlib.closing(connection), connection.cursor() as cursor:
                cursor.execute(record["statement"])
                columns = [column[0] for column in cursor.description or ()]
                return {"columns": columns, "rows": [[_cell(cell) for cell in row] for row in cursor.fetchall()]}
        except pymysql.MySQLError as error:
            number, text = (*error.args, "")[:2]
            return {"error": number, "text": text}


def _document(text: str) -> Any:
    """A reply's JSON object, or the text."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    return document if isinstance(document, dict) else text


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float | type(None)) else str(value)


# --- playing ----------------------------------------------------------------------------------------------------------


def play(document: Recording, place: Place) -> Iterator[tuple[str, Record, dict[str, Any], list[str]]]:
    """Ask `place` every record of `document`: its name, the record, the answer, and where the answer differs.

    Only what a record has is compared: one without `columns` says nothing about columns.
    """
    variables = Variables()
    for scene in document["scenes"]:
        for record in scene["records"]:
            asked = variables.filled({name: value for name, value in record.items() if name != "answer"})
            answer, expected = place.answer(asked), record["answer"]
            seen = {name: value for name, value in answer.items() if name in expected or name in ("error", "text")}
            if isinstance(expected.get("headers"), dict):
                seen["headers"] = {name: answer["headers"].get(name) for name in expected["headers"]}
            found = variables.differences(expected, seen)
            unplayed = "unplayed" in scene or "unplayed" in record
            yield f"{scene['scene']}: {record['name']}", record, answer, [] if unplayed else found
