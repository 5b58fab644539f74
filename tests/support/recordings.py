"""Recordings of a server's answers: files that a person can read and compare, and that the suites play.

A file holds scenes, a scene holds records, and a record is one request with its answer:

- HTTP: `request` (method, path or URL, headers, user, body) and `answer` (status, headers, body; JSON as JSON);
- SQL: `statement` (user, database, and `at` for another server than the play's) and `answer` (columns, rows, or the
  number and text of an error).

`judged` is what the sink makes of the answer (`tests.support.judgement`). The scenes of a file are one play: its
records are sent in their order to one server. `excused` names the reason (`EXCUSES`) why the emulator gives another
answer. `event` says what happens to the server before the request, and `needs` of a scene that a person has to do it,
so that a run leaves the scene out; `unplayed` of a scene that a rehearsal recorded it; `unrecorded` names the parts of
an answer that are nobody else's business. `pause` is a wait in seconds before the request, and `repeat` a number of
requests that are answered alike, with `${n}` counting them. The rows of a SELECT without ORDER BY may come in any
order, and those of an answer with `unordered`.

**Variables** stand for what differs between runs. `${label.1}`, `${db.shop}` and `${user.poor}` in a request are fresh
names; `${txn.1}` in an answer takes the first value that it meets, and every later one must be equal; `${*}` stands for
anything. `${frontend.2}` and `${query.2}` are the addresses of the second of several frontends.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

from tests.support.servers import PREFIX

FOLDER = Path(__file__).parents[1] / "contract" / "recordings"
PATIENCE = 30.0
_WIDTH = 120
_VARIABLE = re.compile(r"\$\{([^{}]+)\}")
_FRESH = ("label", "db", "user")
_NUMBERED = ("txn.", "task.")
_RECORDED_HEADERS = ("content-type", "location", "www-authenticate")

_TXN = re.compile(r"(txnId: |[Tt]ransaction )([0-9]+)")
_TASK = re.compile(r"(STREAM_LOAD_TASK:)([0-9]+)")
_PASSING = (
    re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9:.]{8,15}"),
    re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
)
"""Times and identifiers that differ at each run."""

EXCUSES = {
    "backends": "The recorded frontend's backends are doubles: what they refuse or cannot compute is theirs alone.",
    "others": "Other clients used the recorded server: their labels had finished ones purged.",
    "place": "The emulator's text for an error has no place in the statement.",
    "variables": "The emulator takes every variable, because drivers set many.",
}
"""Why the emulator gives another answer than the recorded one. This list may only shrink."""

UNCOMPARED = {
    "times": "Times: the server was built without optimisation.",
    "tablets": "Versions and rowsets of tablets: the emulator has no tablets.",
    "torn": "How many reads without a lock saw half of a commit: that is chance.",
    "early": "What a client that keeps the connection of a refused load meets on it: HTTP 400 or not is chance.",
    "threads": "Questions while a transaction of 200 tables held every scan thread: also those of others waited.",
}
"""What the programs that made `values-4.1.1.jsonl` and `behaviour-4.1.1.json` saw, and no test compares."""

Record = dict[str, Any]
Recording = dict[str, Any]


def recordings() -> list[Path]:
    """The files of recorded answers."""
    return sorted(FOLDER.glob("*/*.json"))


def read(path: Path) -> Recording:
    document: Recording = json.loads(path.read_text(encoding="utf-8"))
    return document


def write(path: Path, document: Recording) -> None:
    """Write `document` so that a person can read it, and a difference shows in few lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document, "") + "\n", encoding="utf-8")


def _text(value: Any, margin: str) -> str:
    """`value` as JSON: lists of plain values and what fits into a line in one line, else an item a line."""
    line = json.dumps(value, ensure_ascii=False)
    flat = isinstance(value, list) and not any(isinstance(part, dict | list) for part in value)
    if not isinstance(value, dict | list) or flat or len(margin) + len(line) <= _WIDTH:
        return line
    inner = margin + " "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(name)}: {_text(part, inner)}" for name, part in value.items()]
    else:
        items = [inner + _text(part, inner) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(items) + f"\n{margin}{closing}"


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
        """`value` of a request with its variables replaced; a name is made when it is first used."""
        if isinstance(value, dict):
            return {name: self.filled(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.filled(part) for part in value]
        return _VARIABLE.sub(self._value, value) if isinstance(value, str) else value

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        kind, _, tail = name.partition(".")
        if kind in _FRESH:
            start = PREFIX if kind == "db" else f"{kind}_"
            self.values.setdefault(name, f"{start}{tail}_{self.run}")
        return self.values[name]

    def differences(self, expected: Any, answer: Any, place: str = "answer") -> list[str]:
        """Where `answer` differs from `expected`; binds the variables that it meets first."""
        if isinstance(expected, dict) and isinstance(answer, dict):
            names = [*expected, *(name for name in answer if name not in expected)]
            missing = object()
            values = ((name, expected.get(name, missing), answer.get(name, missing)) for name in names)
            return [
                text
                for name, recorded, answer in values
                for text in (
                    [f"{place}.{name}: {'missing' if answer is missing else 'unexpected'}"]
                    if missing in (recorded, answer)
                    else self.differences(recorded, answer, f"{place}.{name}")
                )
            ]
        if isinstance(expected, list) and isinstance(answer, list):
            if len(expected) != len(answer):
                return [f"{place}: {len(answer)} items instead of {len(expected)}"]
            pairs = enumerate(zip(expected, answer, strict=True))
            return [
                text
                for number, (recorded, answer) in pairs
                for text in self.differences(recorded, answer, f"{place}[{number}]")
            ]
        if expected == "${*}":
            return []
        if isinstance(expected, str) and _VARIABLE.search(expected) and answer is not None:
            return [] if self._binds(expected, str(answer)) else [f"{place}: {answer!r} instead of {expected!r}"]
        equal = expected == answer and type(expected) is type(answer)
        return [] if equal else [f"{place}: {answer!r} instead of {expected!r}"]

    def compared(self, expected: Mapping[str, Any], answer: Mapping[str, Any], *, unordered: bool = False) -> list[str]:
        """Where `answer` differs in what a record expects; an error is always compared."""
        answer_part = {name: value for name, value in answer.items() if name in expected or name in ("error", "text")}
        if unordered and "rows" in answer_part:
            answer_part["rows"] = self._arranged(expected["rows"], answer_part["rows"])
        if isinstance(expected.get("headers"), dict):
            answer_part["headers"] = {name: answer["headers"].get(name) for name in expected["headers"]}
        return self.differences(expected, answer_part)

    def _arranged(self, expected: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """`rows` in the order of the expected ones that they fit; the others behind."""
        remaining, arranged = list(rows), []
        for pattern in expected:
            fitting = (row for row in remaining if not Variables(self.run, dict(self.values)).differences(pattern, row))
            if (row := next(fitting, None)) is not None:
                remaining.remove(row)
                arranged.append(row)
        return arranged + remaining

    def general(self, answer: Any) -> Any:
        """`answer` with variables where a run's own values stand."""
        if isinstance(answer, dict):
            return {name: self._general_field(name, value) for name, value in answer.items()}
        if isinstance(answer, list):
            return [self.general(value) for value in answer]
        if not isinstance(answer, str):
            return answer
        for name, value in sorted(self.values.items(), key=lambda item: -len(item[1])):
            if name != "n" and len(value) >= 8:
                answer = answer.replace(value, f"${{{name}}}")
        answer = _TXN.sub(lambda match: match[1] + self._numbered("txn", match[2]), answer)
        answer = _TASK.sub(lambda match: match[1] + self._numbered("task", match[2]), answer)
        for passing in _PASSING:
            answer = passing.sub("${*}", answer)
        return answer

    def _general_field(self, name: str, value: Any) -> Any:
        if name == "TxnId" and value is not None:
            return self._numbered("txn", str(value))
        return "${*}" if name == "Cancelled time" else self.general(value)

    def _numbered(self, kind: str, number: str) -> str:
        """The variable that holds `number`, or the next one."""
        names_by_number = {value: name for name, value in self.values.items() if name.startswith(f"{kind}.")}
        name = names_by_number.get(number, f"{kind}.{len(names_by_number) + 1}")
        self.values[name] = number
        return f"${{{name}}}"

    def _binds(self, expected: str, text: str) -> bool:
        groups: dict[str, str] = {}
        pattern = ""
        for number, part in enumerate(_VARIABLE.split(expected)):
            pattern += re.escape(part) if number % 2 == 0 else self._pattern(part, groups)
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is not None:
            self.values.update({name: match[group] for name, group in groups.items()})
        return match is not None

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
        where = urlsplit(f"mysql://{record['at']}" if "at" in record else self.query_url)
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


# --- playing and recording --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """What is around a play: how time passes, what can happen to the server, and the addresses of its frontends."""

    sleep: Callable[[float], object] = time.sleep
    happen: Callable[[str], object] = lambda _: None
    addresses: Mapping[str, str] = field(default_factory=dict)


def play(document: Recording, place: Place, world: World) -> Iterator[tuple[str, Record, list[str]]]:
    """Ask `place` every record of `document`: its name, the record, and where the answer differs.

    Scenes of a rehearsal (`unplayed`) are left out: their requests have no bodies. Only what a record has is compared:
    one without `columns` says nothing about columns.
    """
    variables = Variables(values=dict(world.addresses))
    played = [scene for scene in document["scenes"] if "unplayed" not in scene]
    for name, record in records({"scenes": played}):
        differing = [
            variables.compared(record.get("answer", {}), answer, unordered=_is_unordered(record))
            for answer in _answers(record, variables, place, world)
        ]
        yield name, record, next(filter(None, differing), [])


def _is_unordered(record: Record) -> bool:
    statement = str(record.get("statement", "")).upper()
    return "unordered" in record or (statement.startswith("SELECT") and "ORDER BY" not in statement)


def record_again(document: Recording, place: Place, server: str, mark: str) -> Recording:
    """`document` with the answers of `place`. An answer that matches the old one keeps its text and its variables.

    Scenes that need a person's hand are left out.
    """
    variables = Variables()
    scenes = []
    for scene in (scene for scene in document["scenes"] if "needs" not in scene):
        again = [_recorded(record, variables, place) for record in scene["records"]]
        scenes.append({**scene, "records": again})
    return {**document, "server": server, "mark": mark, "scenes": scenes}


def _recorded(record: Record, variables: Variables, place: Place) -> Record:
    answer = list(_answers(record, variables, place, World()))[-1]
    old = record.get("answer", {})
    general = {
        name: old[name] if name in old and not variables.differences(old[name], value) else variables.general(value)
        for name, value in answer.items()
        if name not in record.get("unrecorded", ())
    }
    return {**{name: value for name, value in record.items() if name not in ("answer", "judged")}, "answer": general}


def _answers(record: Record, variables: Variables, place: Place, world: World) -> Iterator[dict[str, Any]]:
    if "event" in record:
        world.happen(record["event"])
    world.sleep(record.get("pause", 0))
    question = {name: value for name, value in record.items() if name != "answer"}
    for number in range(record.get("repeat", 1)):
        variables.values["n"] = str(number)
        yield place.answer(variables.filled(question))
