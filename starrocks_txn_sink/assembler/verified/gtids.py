"""Numbers of transactions that a source counts for ever: the GTIDs of MySQL and MariaDB.

A GTID says which transaction it is, wherever it stands in whichever server's log. So a transaction with a GTID that was
never seen is new, also where its place is lower than that of others: a primary that takes over has another log. The
numbers of each server are kept as ranges; they are few, because a server numbers without gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.segments import layout

_HYPHEN: Final = ord("-")
_HEX: Final = "[0-9a-fA-F]"
_GTID: Final = (
    f"^(?P<server>{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?::[A-Za-z_][A-Za-z0-9_]*)?|[0-9]+-[0-9]+)"
    "[:-](?P<number>[0-9]{1,18})$"
)
"""MySQL: the server's UUID, perhaps a tag, and a number; MariaDB: domain, server, and a number."""

MOST_RANGES: Final = 1_000
"""For each server. Statements that have a GTID and no marker (DDL) leave gaps; the oldest ranges become one."""

Ranges = tuple[tuple[int, int], ...]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SeenGtids:
    """The GTIDs that may have been seen: ranges of numbers, ascending, for each server. None outside them was seen.

    Not `whole`: transactions were read before this was kept, so a server that is not here may have been seen.
    """

    numbers: Mapping[str, Ranges] = field(default_factory=dict)
    whole: bool = True

    def find(self, ids: pa.Array) -> tuple[Mask, Mask]:
        """Masks of the transactions `ids` that were seen, and of those that were never seen.

        A transaction without a GTID is in neither, and so is one whose number is below all of its server: it may be
        older than the first one that was read, and a snapshot may have its rows.
        """
        seen, never = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
        for server, places, numbers in by_server(ids):
            ranges = np.array(self.numbers.get(server, ()), dtype=np.int64).reshape(-1, 2)
            if not len(ranges):
                never[places] = self.whole
                continue
            at = np.searchsorted(ranges[:, 0], numbers, side="right") - 1
            inside = (at >= 0) & (numbers <= ranges[np.maximum(at, 0), 1])
            seen[places], never[places] = inside, ~inside & (at >= 0)
        return seen, never

    def and_more(self, ids: pa.Array) -> SeenGtids:
        """These and the GTIDs among `ids`."""
        numbers = dict(self.numbers)
        for server, _, more in by_server(ids):
            numbers[server] = _joined(numbers.get(server, ()), more)
        return SeenGtids(numbers, self.whole) if numbers != self.numbers else self


def has_gtid(ids: pa.Array) -> Mask:
    """Mask of the transactions that have a GTID."""
    if not _have_hyphens(ids):
        return np.zeros(len(ids), dtype=bool)
    mask: Mask = pc.fill_null(pc.match_substring_regex(ids, _GTID), False).to_numpy(zero_copy_only=False)
    return mask


def by_server(ids: pa.Array) -> Sequence[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Of each server: its name, the places of its transactions in `ids`, and their numbers."""
    if not _have_hyphens(ids):
        return ()
    parts = pc.extract_regex(ids, _GTID)
    places = np.flatnonzero(pc.fill_null(parts.is_valid(), False).to_numpy(zero_copy_only=False))
    if not len(places):
        return ()
    found = parts.take(pa.array(places))
    numbers = found.field("number").cast(pa.int64()).to_numpy()
    servers = found.field("server").dictionary_encode()
    codes = servers.indices.to_numpy()
    return [
        (name, places[codes == code], numbers[codes == code])
        for code, name in enumerate(servers.dictionary.to_pylist())
    ]


def _have_hyphens(ids: pa.Array) -> bool:
    """Whether any of the ids may be a GTID: PostgreSQL's are not, and a regular expression takes its time."""
    bounds, data = layout(ids)
    return bool((np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]] == _HYPHEN).any())


def _joined(ranges: Ranges, numbers: npt.NDArray[np.int64]) -> Ranges:
    single = np.unique(numbers)
    together = np.concatenate([np.array(ranges, dtype=np.int64).reshape(-1, 2), np.stack([single, single], axis=1)])
    together = together[np.argsort(together[:, 0], kind="stable")]
    upto = np.maximum.accumulate(together[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], together[1:, 0] > upto[:-1] + 1]))
    last = np.concatenate([begins[1:] - 1, [len(together) - 1]])
    joined = list(zip(together[begins, 0].tolist(), upto[last].tolist(), strict=True))
    oldest = joined[: max(len(joined) - MOST_RANGES + 1, 1)]
    return ((oldest[0][0], oldest[-1][1]), *joined[len(oldest) :])
