"""Parquet files as pyarrow writes them, with the options that keep a small step small.

The files of a step hold a few thousand tokens in dozens of columns, so what stands beside the data
of a column counts. Dictionaries, statistics and a second copy of the schema are left out: together
they would add two bytes to a response token. Dictionaries also hide from the compression that
siblings begin with the same prompt. The codec is zstd, which every common reader has. A large file
that compresses as well as a bomb has zeros between its row groups, so that readers trust it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.store.bounds import least_size

_LEVEL = 9
"""Of zstd. Level 15 takes a fortieth off small files and three times as long."""


def write_parquet(
    file: BinaryIO,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    *,
    split: Sequence[str],
    metadata: Mapping[str, str],
) -> None:
    """Write a parquet file with one row group for each table.

    Args:
        file: open for writing.
        schema: of all tables; nothing but the types of its columns is stored.
        tables: asked for one at a time, so that no more than one is in memory.
        split: paths of leaf columns of numbers: bytes of equal weight stand together there, which
            compress, and the zeros that rounding leaves vanish.
        metadata: stands in the footer.
    """
    sink = pa.PythonFile(file, mode="w")
    unpacked = 0
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=False,
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for table in tables:
            writer.write_table(table)
            unpacked += table.nbytes
            if (short := least_size(unpacked) - sink.tell()) > 0:
                sink.write(bytes(short))
        writer.add_key_value_metadata(dict(metadata))
