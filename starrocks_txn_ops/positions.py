"""Positions as applications know them, and whether a job's ledger has passed one. Pure.

A position is PostgreSQL's LSN (0/16B3748), GTIDs of MariaDB (0-1-123) or MySQL (UUID:1-5), a place in a binlog
(binlog.000003:1234), or a source partition's own number, as the ledger has it (1234). `has_passed` never says so of a
position below which the ledger may lack a source transaction; what it cannot compare is an error.

The numbers of a log ascend in the order of its commits. So the highest one that is visible says that all lower ones
are, also those of transactions without a row for the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final

from starrocks_txn_sink.errors import OptionError, PositionOfOtherSource
from starrocks_txn_sink.protocol.ledger import POSITION
from starrocks_txn_sink.protocol.snapshots import SNAPSHOT, SPREAD, Progress, whole
from starrocks_txn_sink.protocol.source_places import BINLOG, GIVEN_UP, LSN, PLACE, of_name

COLUMNS: Final = "kind, name, position, token"
"""Of the ledger's rows that `Reached.of_rows` takes; those of other kinds do no harm."""

_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_BINLOG: Final = re.compile(r"[^/\\:\s]+\.([0-9]{1,9}):([0-9]{1,10})")
_MARIADB: Final = re.compile(r"([0-9]+)-([0-9]+)-([0-9]{1,18})")
_SERVER: Final = re.compile(r"[0-9]+-[0-9]+")  # of MariaDB: domain and server
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.IGNORECASE)
_INTERVAL: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_QUARANTINE: Final = "#quarantine"  # ends the names of source partitions that have dead letters of the assembler alone
_SUCCESSOR: Final = "@"  # between the name of a source and the time from which on another one follows under it
_FORMS: Final = (
    "Write PostgreSQL's pg_current_wal_lsn() (0/16B3748), MariaDB's @@last_gtid (0-1-123), a GTID of MySQL "
    "(3E11FA47-71CA-11E1-9E33-C80AA9429562:23), a place in a binlog (binlog.000003:1234), or the number of a source "
    "partition (1234)."
)


class Kind(Enum):
    """What a position counts; the value names it in sentences."""

    NUMBER = "a source partition's own number"
    LSN = "an LSN of PostgreSQL"
    BINLOG = "a place in a binlog"
    MARIADB = "a GTID of MariaDB"
    MYSQL = "a GTID of MySQL"


@dataclass(frozen=True, slots=True)
class Position:
    """A position: in each log that it names the highest number. `text` is how it was given.

    The logs are those of `protocol.source_places`; a source partition's own number is under "".
    """

    kind: Kind
    numbers: Mapping[str, int]
    text: str


def parse(text: str, kind: Kind | None = None) -> Position:
    """Read a position; raises OptionError for a text of no form, and for one of another kind than `kind`."""
    text = text.strip()
    position = _read(text)
    if position is None:
        raise OptionError(f"The position {text[:200]!r} has no known form.", hint=_FORMS, option="position")
    if kind is not None and position.kind is not kind:
        message = f"The position {text[:200]} is {position.kind.value}, not {kind.value}."
        raise OptionError(message, hint=_FORMS, option="position")
    return position


def _read(text: str) -> Position | None:
    if _NUMBER.fullmatch(text):
        return Position(Kind.NUMBER, {"": int(text)}, text)
    if lsn := _LSN.fullmatch(text):
        return Position(Kind.LSN, {LSN: (int(lsn[1], 16) << 32) + int(lsn[2], 16)}, text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for kind, of_parts in ((Kind.MARIADB, _mariadb), (Kind.MYSQL, _mysql)):
        numbers = of_parts(parts)
        if numbers:
            return Position(kind, numbers, text)
    if place := _BINLOG.fullmatch(text):
        return Position(Kind.BINLOG, {BINLOG: (int(place[1]) << 32) + int(place[2])}, text)
    return None


def _mariadb(parts: Sequence[str]) -> dict[str, int]:
    """The number of each server, as domain and server name it; empty where a part is no GTID of MariaDB."""
    numbers: dict[str, int] = {}
    for part in parts:
        gtid = _MARIADB.fullmatch(part)
        if gtid is None:
            return {}
        server = f"{int(gtid[1])}-{int(gtid[2])}"
        numbers[server] = max(numbers.get(server, 0), int(gtid[3]))
    return numbers


def _mysql(parts: Sequence[str]) -> dict[str, int]:
    """The highest number of each server, with its tag; empty where a part is no GTID set of MySQL."""
    numbers: dict[str, int] = {}
    for part in parts:
        uuid, *items = (item.strip() for item in part.split(":"))
        if not _UUID.fullmatch(uuid) or not items:
            return {}
        server, intervals = uuid.lower(), 0
        for item in items:
            if interval := _INTERVAL.fullmatch(item):
                last = int(interval[2] or interval[1])
                numbers[server] = max(numbers.get(server, 0), last)
                intervals += 1
            elif _TAG.fullmatch(item):
                server = f"{uuid.lower()}:{item.lower()}"
            else:
                return {}
        if not intervals:
            return {}
    return numbers


@dataclass(frozen=True, slots=True)
class Reached:
    """What a job's ledger says: the numbers by source partition and log (as in Position), and marks of a snapshot."""

    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Reached:
        """What the ledger's rows of one job say; a row is COLUMNS. Rows of other kinds are passed over."""
        numbers: dict[str, dict[str, int]] = {}
        marks: dict[str, str] = {}
        for kind, name, position, token in rows:
            if kind == POSITION:
                numbers.setdefault(str(name), {})[""] = int(position)
            elif kind == PLACE:
                partition, log = of_name(str(name))
                numbers.setdefault(partition, {})[log] = int(position)
            elif kind == SNAPSHOT:
                marks[str(name)] = str(token)
        return cls(numbers, marks)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a position is passed. `partition` is the source partition that was asked, "" as long as there is none.

    `number` is its position in the ledger (None without one), `lacks` says in a sentence why it is not passed, and
    `given_up` counts the source transactions that were given up so far: the ledger does not say where. `at`: nothing
    behind the position is visible, either.
    """

    passed: bool
    partition: str = ""
    number: int | None = None
    lacks: str = ""
    given_up: int = 0
    at: bool = field(default=False, compare=False)


def has_passed(reached: Reached, position: Position, partition: str = "") -> Judgement:
    """Judge whether all source transactions up to `position` are behind the ledger: visible, dead-lettered, given up.

    `partition` names the source partition; without it that of the position's log is taken. Raises
    PositionOfOtherSource for a position that the job's sources cannot reach, and OptionError where several may.
    """
    if position.kind is Kind.NUMBER:
        return _has_passed_number(reached, position, partition)
    sources = {
        name: _places(logs)
        for name, logs in _current(reached.numbers).items()
        if not partition or name == partition or _family(name) == partition
    }
    places = {name: logs for name, logs in sources.items() if logs}
    if not places:
        why = "nothing of the source is visible"
        if any("" in reached.numbers[name] for name in sources):
            why = (
                "the ledger says no place in the source's log: it does from the first change on that a job of whole "
                "source transactions of Debezium writes under this release, and never where transactions = none"
            )
        return Judgement(False, partition, lacks=why)
    name = _source_of(places, position, partition)
    return _judged(reached, name, places[name], position)


def _has_passed_number(reached: Reached, position: Position, partition: str) -> Judgement:
    own = {name: logs[""] for name, logs in reached.numbers.items() if "" in logs and not name.endswith(_QUARANTINE)}
    names = [partition] if partition else sorted(own)
    if len(names) > 1:
        raise _several(names, position)
    if not names or names[0] not in own:
        record = f"; the ledger has {_listed(sorted(own))}" if own else ""
        return Judgement(False, partition, lacks=f"nothing of this source partition is visible{record}")
    return _judged(reached, names[0], {"": own[names[0]]}, position)


def _judged(reached: Reached, name: str, logs: Mapping[str, int], position: Position) -> Judgement:
    lacks = next(chain(_lacking(logs, position), _lacking_snapshot(reached.marks, _family(name))), "")
    numbers = reached.numbers[name]
    most = {_domain_of(log): number for log, number in position.numbers.items()}
    at = not lacks and all(number <= most.get(_domain_of(log), -1) for log, number in logs.items())
    return Judgement(not lacks, name, numbers.get(""), lacks, numbers.get(GIVEN_UP, 0), at)


def _current(numbers: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Without dead letters' source partitions, and without sources that another one has followed."""
    newest: dict[str, str] = {}
    for name in sorted(numbers):  # the times of successors ascend as texts
        if not name.endswith(_QUARANTINE):
            newest[_family(name)] = name
    return {name: numbers[name] for name in newest.values()}


def _places(logs: Mapping[str, int]) -> dict[str, int]:
    """The numbers of the source's own logs.

    Those of LSNs and a binlog are the partition's own number, which moves with parts of a micro-batch, too. A binlog
    does not count beside GTIDs: its files begin anew with another primary.
    """
    own = {
        log: logs.get("", number) if log in (LSN, BINLOG) else number
        for log, number in logs.items()
        if log not in ("", GIVEN_UP)
    }
    return {log: number for log, number in own.items() if log != BINLOG or len(own) == 1}


def _family(name: str) -> str:
    """The name under which sources have followed one another."""
    return name.partition(_SUCCESSOR)[0]


def _source_of(places: Mapping[str, Mapping[str, int]], position: Position, partition: str) -> str:
    """The source of a position, by its logs; raises PositionOfOtherSource, and OptionError for several."""
    alike = [name for name, logs in places.items() if any(_is_of(position.kind, log) for log in logs)]
    if not alike:
        raise _of_other(position, "", places)
    if position.kind in (Kind.MARIADB, Kind.MYSQL):
        knowing = [name for name in alike if position.numbers.keys() <= places[name].keys()]
        alike = knowing or [name for name in alike if _may_be(places[name], position)]
    if not alike:
        raise _of_other(position, "servers", places)
    if len(alike) > 1 and partition not in alike:
        raise _several(alike, position)
    return partition if partition in alike else alike[0]


def _is_of(kind: Kind, log: str) -> bool:
    """Whether positions of this kind count in a log."""
    if log in (LSN, BINLOG):
        return kind is {LSN: Kind.LSN, BINLOG: Kind.BINLOG}[log]
    return kind is (Kind.MARIADB if _SERVER.fullmatch(log) else Kind.MYSQL)


def _may_be(logs: Mapping[str, int], position: Position) -> bool:
    """Whether GTIDs may be of the source that has these logs: it knows each server, or may get to know it.

    Numbers of MariaDB ascend in a domain. So one of an unknown server may be the first one of a new primary if it is
    above all of its domain.
    """
    return all(
        server in logs or (position.kind is Kind.MARIADB and (domain := _domain(logs, server)) and number > max(domain))
        for server, number in position.numbers.items()
    )


def _domain_of(log: str) -> str:
    """The log, or the domain of a server of MariaDB: its numbers ascend, whichever of its servers gives them."""
    return log.partition("-")[0] if _SERVER.fullmatch(log) else log


def _domain(logs: Mapping[str, int], server: str) -> list[int]:
    begin = f"{server.partition('-')[0]}-"
    return [number for log, number in logs.items() if log.startswith(begin) and _is_of(Kind.MARIADB, log)]


def _lacking(logs: Mapping[str, int], position: Position) -> Iterator[str]:
    """What the source has not reached yet."""
    for log, number in position.numbers.items():
        place = logs.get(log)
        if place is None:
            yield f"no transaction of the server {log} is visible"
        elif place < number:
            yield f"it is at {place_text(log, place)}"


def _lacking_snapshot(marks: Mapping[str, str], connector: str) -> Iterator[str]:
    """That the first snapshot is not over. Of tables whose topics have several partitions its last row decides."""
    of_connector = {name: mark for name, mark in marks.items() if name.startswith(whole(connector))}
    record = {name: mark for name, mark in of_connector.items() if mark != SPREAD}
    if of_connector and not Progress.of(record).ended:
        yield f"the source's first snapshot is not over ({Progress.of(of_connector).text})"


def place_text(log: str, number: int) -> str:
    """A number of a log as the source writes it; a binlog's file by its number alone."""
    if log == LSN:
        return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
    if log == BINLOG:
        return f"file {number >> 32}, offset {number & 0xFFFFFFFF}"
    if log:
        return f"{log}{'-' if _is_of(Kind.MARIADB, log) else ':'}{number}"
    return str(number)


def _of_other(position: Position, what: str, places: Mapping[str, Mapping[str, int]]) -> PositionOfOtherSource:
    names = "; ".join(
        f"{name} at {', '.join(place_text(log, number) for log, number in sorted(logs.items()))}"
        for name, logs in sorted(places.items())
    )
    hint = None
    if position.kind is Kind.BINLOG:
        hint = "A source with GTIDs is asked by GTID, because its files begin anew when another server takes over."
    elif what:
        hint = "Ask for the GTID of your own commit alone (MariaDB: @@last_gtid; MySQL: session_track_gtids=OWN_GTID)."
    owner = " of servers that are not this source's" if what else ""
    return PositionOfOtherSource(
        f"The position {position.text[:200]} is {position.kind.value}{owner}. The job has read: {names}.", hint=hint
    )


def _several(names: Sequence[str], position: Position) -> OptionError:
    return OptionError(
        f"The position {position.text[:200]} may be of several source partitions: {_listed(names)}.",
        hint="Name one (--partition; partition=… in Python).",
        option="partition",
    )


def _listed(names: Sequence[str], limit: int = 20) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
