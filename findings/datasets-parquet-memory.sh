#!/usr/bin/env bash
# Expected: `datasets` reads a parquet file group by group of rows, so one group is in memory.
# True:     all groups that were read stay in memory until the file ends, if the rows are stored and if they are
#           streamed. With pyarrow's pre_buffer off, it is one group.
# Source:   datasets 5.2.0, packaged_modules/parquet/parquet.py; pyarrow 25.0.0, ParquetFragmentScanOptions.
. "$(dirname "$0")/lib/environment.sh"
packages datasets==5.2.0 pyarrow==25.0.0
export HF_HUB_OFFLINE=1
seen "100 groups, 60 MB" \
  "stored: all in memory: True" "streamed: all in memory: True" \
  "pre_buffer off: all in memory: False" <<'PY'
import tracemalloc

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import ParquetFragmentScanOptions

table = pa.table({"text": ["x" * 296] * 200_000})
pq.write_table(table, "rows.parquet", row_group_size=2000, use_dictionary=False, compression="none")
print(f"{pq.ParquetFile('rows.parquet').num_row_groups} groups, {table.nbytes / 1e6:.0f} MB")


def show(name, streaming=False, **options):
    tracemalloc.start()
    rows = datasets.load_dataset(
        "parquet", data_files="rows.parquet", split="train", cache_dir=name, streaming=streaming, **options
    )
    if streaming:
        for _ in rows:
            pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name}: all in memory:", most > 0.9 * table.nbytes)


show("stored")
show("streamed", streaming=True)
show("pre_buffer off", fragment_scan_options=ParquetFragmentScanOptions(pre_buffer=False))
PY
