"""Whether two lanes have loaded rows of one key: then nothing says which of the rows is the last one.

Lanes that assemble together have whole partitions of topics, and the rows of a key come through one partition. This
does not hold where a topic has got more partitions, or where the table's key is not that of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.keys import of_one_type

_KEY = "key"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


def keys_to_bytes(keys: Sequence[pa.Array]) -> bytes:
    """The keys of the rows of a table, for `find_shared`."""
    joined = pa.concat_arrays(of_one_type(*keys)).drop_null()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([(_KEY, joined.type)]), options=_COMPRESSED) as writer:
        writer.write_table(pa.table({_KEY: joined}))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def find_shared(lanes: Sequence[Mapping[str, bytes]]) -> str | None:
    """The first table of which two lanes have loaded a row of one key; `lanes` have their keys by table."""
    for table in sorted({name for lane in lanes for name in lane}):
        read = [pa.ipc.open_stream(lane[table]).read_all()[_KEY] for lane in lanes if table in lane]
        known, *others = of_one_type(*read)
        for keys in others:
            if pc.any(pc.is_in(keys, value_set=known)).as_py():
                return table
            known = pa.chunked_array([*_chunks(known), *_chunks(keys)])
    return None


def _chunks(keys: pa.Array | pa.ChunkedArray) -> Sequence[pa.Array]:
    chunks: Sequence[pa.Array] = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    return chunks
