"""Bodies as a relation of text: the SQL that reads load bodies by DuckDB's own readers, and decompression before it.

Every reader yields the same shape, in arrival order (files in order, rows in order within a file):
`fields` VARCHAR[] one text per source field, NULL when it is null or missing; `raw` VARCHAR the row as it was written
(NULL for CSV); `fault` VARCHAR why the row is no row at all, or NULL. Of JSON that DuckDB cannot read `fields` is NULL.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from starrocks_emulator.tables.catalog import literal
from starrocks_emulator.tables.json_text import rows_of
from starrocks_emulator.tables.plan import CsvLayout, JsonLayout, Plan

NO_OBJECT = "the row is not a JSON object"
_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which the server takes for the begin of what is no JSON."""
_BLOCK = 4 << 20
_LARGEST_ROW = 16 << 20


class UnreadableBody(Exception):
    """A body that cannot be decompressed; the message says how it should have been."""


def plain_files(plan: Plan, paths: Sequence[Path], folder: Path) -> list[Path]:
    """The bodies as files without compression, those of a CSV load joined into one stream; new files go to `folder`.

    Raises UnreadableBody.
    """
    files = [_decompressed(path, plan.compression, folder / path.name) if plan.compression else path for path in paths]
    if isinstance(plan.layout, JsonLayout) or len(files) == 1:
        return files
    joined = folder / "stream"
    with joined.open("wb") as target:
        for file in files:
            with file.open("rb") as source:
                shutil.copyfileobj(source, target, _BLOCK)
    return [joined]


def _decompressed(path: Path, compression: str, target: Path) -> Path:
    if path.stat().st_size == 0:
        return path
    try:
        if compression == "zlib":
            target.write_bytes(zlib.decompress(path.read_bytes()))
            return target
        with (
            pa.OSFile(str(path)) as source,
            pa.CompressedInputStream(source, compression) as plain,
            pa.OSFile(str(target), "wb") as sink,
        ):
            while block := plain.read_buffer(_BLOCK):
                sink.write(block)
    except (OSError, ValueError, zlib.error) as error:
        raise UnreadableBody(f"Failed to decompress the body, compression: {compression}") from error
    return target


def source_sql(plan: Plan, files: Sequence[Path]) -> str:
    """The SELECT that reads the plain body files."""
    if isinstance(plan.layout, JsonLayout):
        return _json_sql(plan.layout, files)
    return _csv_sql(plan.layout, len(plan.mapping.fields), files[0])


def torn_rows(layout: JsonLayout, files: Sequence[Path]) -> list[str]:
    """The rows of JSON bodies as the server finds them where they are not all in order; raises UnreadableJson."""
    array = layout.strip_outer_array and not layout.root
    return [row for file in files for row in rows_of(file.read_bytes(), array=array).texts]


def begins_with_mark(file: Path) -> bool:
    """Whether the file begins with a byte order mark."""
    with file.open("rb") as content:
        return content.read(len(_MARK)) == _MARK


def _json_sql(layout: JsonLayout, files: Sequence[Path]) -> str:
    names = "[" + ", ".join(literal(str(file)) for file in files) + "]"
    listed = "[" + ", ".join(literal(path) for path in layout.paths) + "]"
    kind = "array" if layout.strip_outer_array and not layout.root else "unstructured"
    rows = f"SELECT json FROM read_json_objects({names}, format='{kind}', maximum_object_size={_LARGEST_ROW})"
    if layout.root:
        root = f"json_extract(json, {literal(layout.root)})"
        rows = f"SELECT {root} AS json FROM ({rows})"
        if layout.strip_outer_array:
            rows = f"SELECT unnest(CAST(json AS JSON[])) AS json FROM ({rows})"
    return (
        f"SELECT json_extract_string(json, {listed}) AS fields, CAST(json AS VARCHAR) AS raw,"
        f" CASE WHEN NOT starts_with(json, '{{') THEN {literal(NO_OBJECT)} END AS fault FROM ({rows})"
    )


def _csv_sql(layout: CsvLayout, width: int, file: Path) -> str:
    if layout.enclose:
        return _enclosed_sql(layout, width, file)
    separator, delimiter = layout.column_separator, layout.row_delimiter
    text, restore = "content", "part"
    if layout.escape:
        text, restore = _escaped(layout)
    trimmed = f"trim({restore})" if layout.trim_space else restore
    return (
        f"SELECT list_transform(parts, lambda part: CASE WHEN part <> '\\N' THEN {trimmed} END) AS fields,"
        " CAST(NULL AS VARCHAR) AS raw,"
        f" CASE WHEN len(parts) <> {width} THEN {_miscounted(width)} END AS fault"
        f" FROM (SELECT string_split(line, {_sql_text(separator)}) AS parts FROM ("
        f"SELECT unnest(string_split({text}, {_sql_text(delimiter)})[{layout.skip_header + 1}:]) AS line"
        f" FROM read_text({literal(str(file))})) WHERE line <> '')"
    )


def _escaped(layout: CsvLayout) -> tuple[str, str]:
    """(text with escaped separators put aside, expression that brings them back in the lambda's `part`)."""
    text, back = "content", "part"
    for mark, separator in enumerate((layout.escape, layout.column_separator, layout.row_delimiter), start=1):
        text = f"replace({text}, {_sql_text(layout.escape + separator)}, chr({mark}))"
        back = f"replace({back}, chr({mark}), {_sql_text(separator)})"
    return text, back


def _enclosed_sql(layout: CsvLayout, width: int, file: Path) -> str:
    columns = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(width + 1))
    escape = layout.escape or layout.enclose
    values = ", ".join(f"trim(c{place})" if layout.trim_space else f"c{place}" for place in range(width))
    return (
        f"SELECT [{values}] AS fields, CAST(NULL AS VARCHAR) AS raw,"
        f" CASE WHEN c{width} IS NOT NULL THEN {_miscounted(width)} END AS fault"
        f" FROM read_csv({literal(str(file))}, auto_detect=false, header=false, null_padding=true, parallel=false,"
        f" strict_mode=false, skip={layout.skip_header}, nullstr='\\N', delim={_sql_text(layout.column_separator)},"
        f" quote={_sql_text(layout.enclose)}, escape={_sql_text(escape)}, columns={{{columns}}})"
    )


def _miscounted(width: int) -> str:
    return literal(f"value count does not match column count, expected {width}")


def _sql_text(text: str) -> str:
    """A literal for a text that may hold control characters."""
    return " || ".join(f"chr({ord(letter)})" if ord(letter) < 32 else literal(letter) for letter in text)
