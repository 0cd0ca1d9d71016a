"""What tells one detector from another: hashes of files and of module weights, the processor, and names made of them.

An identity reads `NAME (SETTINGS DEVICE) sha256:HASH`. A CPU is named by what of its instruction set programs choose
their kernels by: other kernels add in another order, and then the last bits of a score are others.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}  # some libraries choose by the vendor, too
# The extensions that ONNX Runtime, oneDNN, MKL, OpenBLAS and NumPy choose by: of x86-64, then of ARM.
EXTENSIONS = (
    "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8",
    "amx_bf16", "amx_fp16", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_ON_CPU = re.compile(r"\bcpu( [^()]*)?\)")


def hash_files(*paths: Path) -> str:
    """SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def hash_file_set(paths: Iterable[Path]) -> str:
    """SHA-256 of names and contents of files, wherever they lie and in whatever order they are given."""
    entries = sorted(f"{hash_files(path)} {path.name}" for path in paths)
    return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


def hash_module(module: Any) -> str:
    """SHA-256 of a PyTorch module: every weight with its name, type and shape, and what its parts are set to.

    Of each part that is its class and the plain values it holds: a threshold or a number of heads decides the boxes as
    much as the weights do, and is not among them.
    """
    import torch

    digest = hashlib.sha256()
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}".encode())
        plain = sorted((key, value) for key, value in vars(part).items() if key not in BESIDE and _is_plain(value))
        digest.update(repr(plain).encode("utf-8", "backslashreplace"))
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# What modules remember beside their settings: where transformers read them from, how, and whether they are trained.
BESIDE = ("name_or_path", "training", "_use_kernels")


def _is_plain(value: Any) -> bool:
    """Whether a value is made of numbers and texts alone: it is then written alike in every process."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def model_fingerprint(model: Any, score_floor: float, device: str, around: object = "") -> str:
    """The identity of a PyTorch model that resizes and suppresses by itself; `around` decides its boxes, too."""
    hashed = hash_module(model)
    if around:
        hashed = hashlib.sha256(f"{hashed} {around}".encode()).hexdigest()
    return f"{type(model).__name__} (floor={score_floor:g} {device_fingerprint(device)}) sha256:{hashed}"


def device_fingerprint(device: str) -> str:
    """The kind of a torch device and its model: another one may round differently; its number does not matter."""
    import torch

    kind = torch.device(device).type
    if kind == "cpu":
        return on_cpu()
    return f"{kind} {torch.cuda.get_device_name(device)}" if kind == "cuda" else kind


def on_cpu() -> str:
    return f"cpu {instruction_set()}"


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """The processor in a few words, such as `x86-64 amd avx fma avx2`."""
    machine = {"AMD64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    try:
        return _described(machine, CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return " ".join(filter(None, (machine, _brand())))


def _described(machine: str, info: str) -> str:
    """What /proc/cpuinfo says of the first processor."""
    pairs = (line.partition(":") for line in reversed(info.split("\n\n")[0].splitlines()))
    first = {key.strip(): value.strip() for key, _, value in pairs}
    vendor = first.get("vendor_id") or first.get("CPU implementer", "")
    has = set((first.get("flags") or first.get("Features", "")).split())
    return " ".join(filter(None, (machine, VENDORS.get(vendor, vendor), *(name for name in EXTENSIONS if name in has))))


def _brand() -> str:
    """Where there is no /proc: macOS says `Apple M1` or the like, Windows the family and vendor."""
    try:
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        said = platform.processor()
    return re.sub(r"[()]+", " ", said).strip()


def differs_only_in_cpu(one: str, other: str) -> bool:
    """Whether two identities name the same detector with the same settings, on CPUs that may differ."""
    return bool(_ON_CPU.search(one)) and _ON_CPU.sub("cpu)", one) == _ON_CPU.sub("cpu)", other)


def describe_difference(was: str, now: str) -> str:
    """What is different between two identities, for people: the processors, where nothing else is."""
    if differs_only_in_cpu(was, now):
        was, now = (match[1] or "" if (match := _ON_CPU.search(one)) else "" for one in (was, now))
        return f"the CPU was {was.strip() or 'not recorded'} and is {now.strip() or 'not recorded'} here"
    return f"it was {was} and is {now} here"
