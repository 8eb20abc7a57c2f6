"""Parquet files that are small although a step is: what the format offers beside the data costs.

The files of a step hold a few thousand tokens in dozens of columns, so what stands beside the data
of a column would be half of them:

- dictionaries, statistics and a second copy of the schema are left out. Dictionaries also hide from
  the compression that siblings begin with the same prompt;
- brotli frames a page of twenty bytes in few bytes, where zstd takes ten, and finds numbers that
  repeat. It is as fast. A small file gets a slow level, which takes a tenth off its numbers and
  some hundredths of a second;
- the footer of a small file loses what describes pages for a query planner (`footer`).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.store.parquet_footer import slim_footer

_LEVEL = 5
"""Of brotli: 40 MB a second."""
_SMALL_LEVEL = 10
"""2 MB a second. The next one takes three times as long for a fiftieth less."""
_SMALL_BYTES = 2**18
"""In memory: files below have the slow level."""


def write_compact(
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
        tables: asked for one at a time, so that no more than two are in memory.
        split: paths of leaf columns of numbers: bytes of equal weight stand together there, which
            compress, and the zeros that rounding leaves vanish.
        metadata: stands in the footer.
    """
    left = iter(tables)
    first = list(itertools.islice(left, 2))
    small = len(first) < 2 and sum(table.nbytes for table in first) < _SMALL_BYTES
    whole = io.BytesIO()
    with pq.ParquetWriter(
        whole if small else file,
        schema,
        compression="brotli",
        compression_level=_SMALL_LEVEL if small else _LEVEL,
        use_dictionary=False,
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for table in itertools.chain(first, left):
            writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata))
    if small:
        file.write(slim_footer(whole.getvalue()))
