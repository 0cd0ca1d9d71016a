"""Write a measurement as a data file of the documentation (used by scripts that measure).

A data file is docs/results/data/NAME.json: command, date, hardware and software, and the table (columns and rows),
values that prose quotes, or both. `scripts/write_tables.py` writes the tables into the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import objectseeker
from objectseeker.files.atomic import save_text

CONDITIONS = ("command", "date", "hardware", "software")
PACKAGES = ("numpy", "onnxruntime", "torch", "openvino", "transformers", "ray")


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add --data FILE, the data file that the documentation's table is made of."""
    parser.add_argument("--data", type=Path, metavar="FILE", help="also write the table to docs/results/data/NAME.json")


def save_data(
    file: Path | None, rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any] | None = None, **conditions: str
) -> None:
    """Write rows (column: cell) and values as a data file; what `conditions` omit is taken from this process.

    A cell is a string, a number, None (empty), or [value, low, high]. Numbers are shown as written: round them.
    """
    if file is None:
        return
    content: dict[str, Any] = conditions_here() | conditions
    if rows:
        content |= {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
    save_text(file, dump(content | ({"values": dict(values)} if values else {})))


def conditions_here() -> dict[str, str]:
    """Return the command, date, hardware and software of this process; of paths the last names only."""
    words = [word.rstrip("/").rsplit("/", 1)[-1] if word.startswith(("/", "~")) else word for word in sys.argv[1:]]
    software = [f"{name} {sys.modules[name].__version__}" for name in PACKAGES if name in sys.modules]
    return {
        "command": shlex.join(["python", f"{Path(sys.argv[0]).parent.name}/{Path(sys.argv[0]).name}", *words]),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{processor()}, {available_cores()} cores" + gpus(),
        "software": ", ".join(
            [f"Python {platform.python_version()}", f"objectseeker {objectseeker.__version__}", *software]
        ),
    }


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor, as the system has it."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def gpus() -> str:
    """Return the names of the GPUs that torch has in use, with a comma before each."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return ""
    return "".join(f", {torch.cuda.get_device_name(number)}" for number in range(torch.cuda.device_count()))


def dump(content: Mapping[str, Any]) -> str:
    """Return a data file as text: one line per row."""
    lines = []
    for key, value in content.items():
        if key == "rows":
            inner = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f'  "rows": [\n{inner}\n  ]')
        elif key == "values":
            inner = ",\n".join(
                f"    {json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}"
                for k, v in value.items()
            )
            lines.append(f'  "values": {{\n{inner}\n  }}')
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
