"""What the footer of a Parquet file states is read as pyarrow reads it; no footer ends the process."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objectseeker import ObjectSeekerError
from objectseeker.runs.tables import require_bounded, stated_sizes

# In a process of its own, since a fault of native code would end it. pyarrow aborts at some of these footers when it is
# on reading the metadata of a column: "Definition level histogram size mismatch".
EVERY_FLIP = """
import sys
from pathlib import Path
from objectseeker import ObjectSeekerError
from objectseeker.runs.tables import require_bounded
file = Path(sys.argv[1])
content = file.read_bytes()
start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
rejected = 0
for place in range(start, len(content)):
    for bit in (place % 8, (place + 3) % 8):
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        file.write_bytes(flipped)
        try:
            require_bounded(file)
        except ObjectSeekerError:
            rejected += 1
print(rejected)
"""


@pytest.fixture
def file(tmp_path):
    table = pa.table({"box": [[1.0, 2.0], [], [3.0]] * 40, "name": [["a"], None, ["b", "cd"]] * 40})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=50)
    return tmp_path / "part.parquet"


def test_a_footer_states_what_pyarrow_reads(file):
    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    stated = [(column.num_values, column.total_uncompressed_size) for column in columns]
    assert stated_sizes(file) == (120, stated)
    assert len(stated) == 6


def test_no_footer_ends_the_process(file):
    told = subprocess.run(
        [sys.executable, "-c", EVERY_FLIP, str(file)], capture_output=True, text=True, env=os.environ, check=False
    )
    assert told.returncode == 0, told.stderr[-500:]
    assert int(told.stdout) > 100


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 8 + b"PAR1", b"\x1c" * 90 + b"\x5a\0\0\0PAR1"])
def test_what_is_not_a_footer_is_rejected(tmp_path, content):
    (tmp_path / "part.parquet").write_bytes(content)
    with pytest.raises(ObjectSeekerError, match="is not a file of a run"):
        require_bounded(tmp_path / "part.parquet")
