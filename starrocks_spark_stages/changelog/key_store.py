"""State of the keys of one bucket, many keys to a page: each call to the state store serves a page, not a key.

A call from Python to Spark's state store costs about as much as a thousand bytes, so keys share pages of a few thousand
bytes: entries of a MapState, found by linear hashing, whose pages split one by one as the bucket grows. The rows of a
key with many of them are parts of their own, so that a change writes one part. Names and schemas of states are part of
a checkpoint: keep them.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import orjson

from starrocks_spark_stages.changelog.rules.keyed import Retention, State

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

PAGE_BYTES: Final = 4096  # bytes, on average
INLINE_ROWS: Final = 64  # a key with more rows has them in parts …
PART_ROWS: Final = 64  # … of up to so many


class KeyStates:
    """The state variables of the operator."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self.pages = handle.getMapState("pages", "page bigint", "entries string")
        self.parts = handle.getMapState("parts", "key string, part bigint", "rows string")
        self.layout = handle.getValueState("layout", "pages bigint, keys bigint, bytes bigint")


@dataclass(slots=True)
class _Page:
    entries: dict[str, Any] = field(default_factory=dict)  # [last access, state], or [last access, None, parts]
    size: int = 0  # bytes, as stored or last measured
    stored: bool = False
    changed: bool = False


class Bucket:
    """The states of the bucket whose group is being processed, at `now`; `flush` writes what has changed."""

    def __init__(self, states: KeyStates, retention: Retention, now: float) -> None:
        self._states, self._retention, self._now = states, retention, now
        self._loaded: dict[int, _Page] = {}
        self._parts: dict[str, dict[int, State]] = {}  # rows of a key, as they are stored
        layout = states.layout.get()
        self._layout: tuple[int, int, int] | None = None if layout is None else tuple(layout)
        self._pages, self._keys, self._bytes = self._layout or (1, 0, 0)

    def state(self, key: str) -> State | None:
        """The state of a key; None if there is none, or if it has expired."""
        entry = self._page(key).entries.get(key)
        if entry is None or self._retention.has_expired(entry[0], self._now):
            return None
        return (
            entry[1] if len(entry) == 2 else [row for rows in self._stored_parts(key, entry).values() for row in rows]
        )

    def keep(self, key: str, state: State) -> None:
        """Set the state of a key, accessed now."""
        page = self._page(key)
        entry = page.entries.get(key)
        self._keys += entry is None
        parts = {} if len(state) <= INLINE_ROWS else _in_parts(state)
        self._write_parts(key, {} if entry is None else self._stored_parts(key, entry), parts)
        page.entries[key] = [self._now, None, [*parts]] if parts else [self._now, state]
        page.changed = True

    def remove(self, key: str) -> None:
        """Remove the state of a key, if there is one."""
        page = self._page(key)
        entry = page.entries.pop(key, None)
        if entry is not None:
            self._write_parts(key, self._stored_parts(key, entry), {})
            self._keys -= 1
            page.changed = True

    def sweep(self) -> None:
        """Remove expired states, from all pages."""
        for number in [page for (page,), _ in self._states.pages.iterator()]:
            entries = self._load(number).entries
            for key in [key for key, entry in entries.items() if self._retention.has_expired(entry[0], self._now)]:
                self.remove(key)

    def flush(self) -> None:
        """Write the changed pages, after pages that have grown are split."""
        texts = self._measured()
        if self._grow():
            texts = self._measured()
        for number, text in texts.items():
            page = self._loaded[number]
            if page.entries:
                self._states.pages.updateValue((number,), (text,))
            elif page.stored:
                self._states.pages.removeKey((number,))
        layout = (self._pages, self._keys, self._bytes)
        if texts and layout != self._layout:
            self._states.layout.update(layout)

    # --- pages ---

    def _number(self, key: str) -> int:
        """The page of a key: as many bits of its hash as page numbers need; one less if that page is missing."""
        digest, half = crc32(key.encode()), 1 << (self._pages.bit_length() - 1)
        number = digest % (2 * half)
        return number if number < self._pages else digest % half

    def _page(self, key: str) -> _Page:
        return self._load(self._number(key))

    def _load(self, number: int) -> _Page:
        page = self._loaded.get(number)
        if page is None:
            value = self._states.pages.getValue((number,)) if self._layout is not None else None
            page = _Page() if value is None else _Page(orjson.loads(value[0]), len(value[0]), stored=True)
            self._loaded[number] = page
        return page

    def _measured(self) -> dict[int, str]:
        """The texts of the changed pages, by number."""
        texts = {}
        for number, page in self._loaded.items():
            if page.changed:
                texts[number] = orjson.dumps(page.entries).decode() if page.entries else ""
                self._bytes += len(texts[number]) - page.size
                page.size = len(texts[number])
        return texts

    def _grow(self) -> bool:
        """Add pages until they are small enough on average; a new page takes keys from a single page."""
        pages = self._pages
        while self._bytes > self._pages * PAGE_BYTES and self._pages < self._keys:
            new = self._pages
            old = self._load(new - (1 << (new.bit_length() - 1)))
            page = self._loaded[new] = _Page()
            self._pages += 1
            for key in [key for key in old.entries if self._number(key) == new]:
                page.entries[key] = old.entries.pop(key)
                page.changed = old.changed = True
        return self._pages > pages

    # --- rows in parts ---

    def _stored_parts(self, key: str, entry: list[Any]) -> dict[int, State]:
        if len(entry) == 2:
            return {}
        if key not in self._parts:
            stored = {part: self._states.parts.getValue((key, part)) for part in entry[2]}
            self._parts[key] = {part: orjson.loads(text[0]) for part, text in stored.items() if text is not None}
        return self._parts[key]

    def _write_parts(self, key: str, before: dict[int, State], after: dict[int, State]) -> None:
        for part in before.keys() - after.keys():
            self._states.parts.removeKey((key, part))
        for part, rows in after.items():
            if before.get(part) != rows:
                self._states.parts.updateValue((key, part), (orjson.dumps(rows).decode(),))
        if before or after:
            self._parts[key] = after


def _in_parts(state: State) -> dict[int, State]:
    """Rows by part; the first item of a row is its place, which it keeps."""
    by_part: Iterator[tuple[int, Iterator[Any]]] = groupby(state, key=lambda row: row[0] // PART_ROWS)
    return {part: list(rows) for part, rows in by_part}
