"""Bodies as a relation of text: the SQL that reads load bodies by DuckDB's own readers, and decompression before it.

Every reader yields the same shape, in arrival order (files in order, rows in order within a file):
`fields` VARCHAR[] one text per source field, NULL when it is null or missing; `document` JSON the whole row (NULL for
CSV); `exact` VARCHAR the row with its long numbers in quotes, so that they keep their digits (NULL for CSV); `fault`
VARCHAR why the row is no row at all, or NULL.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from starrocks_emulator.tables.catalog import literal
from starrocks_emulator.tables.plan import CsvLayout, JsonLayout, Plan

ARRAY_EXPECTED = "The value should be array type in json document stream when strip_outer_array is true"
OBJECT_EXPECTED = (
    "The value is array type in json document stream, you can set strip_outer_array=true to parse each element of "
    "the array as individual rows"
)
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
        f"SELECT json_extract_string(json, {listed}) AS fields, json AS document, {_EXACT} AS exact,"
        f" CASE WHEN starts_with(json, '{{') THEN NULL WHEN starts_with(json, '[') THEN {literal(OBJECT_EXPECTED)}"
        f" ELSE 'the row is not a JSON object' END AS fault FROM ({rows})"
    )


_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKENS = rf'"(?:[^"\\]|\\.)*"|{_NUMBER}|[^"0-9-]+|-'
_EXACT = (
    "CASE WHEN regexp_matches(json, '[0-9.]{16}') THEN array_to_string(list_transform("
    f"regexp_extract_all(CAST(json AS VARCHAR), {literal(_TOKENS)}), lambda token:"
    f" CASE WHEN regexp_full_match(token, {literal(_NUMBER)}) THEN '\"' || token || '\"' ELSE token END), '')"
    " ELSE CAST(json AS VARCHAR) END"
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
        f" CAST(NULL AS JSON) AS document, CAST(NULL AS VARCHAR) AS exact,"
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
        f"SELECT [{values}] AS fields, CAST(NULL AS JSON) AS document, CAST(NULL AS VARCHAR) AS exact,"
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
