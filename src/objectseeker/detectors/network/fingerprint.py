"""Fingerprints of detectors: hashes of files and module weights, with settings and processor.

A fingerprint reads `NAME (SETTINGS DEVICE) sha256:HASH`. A CPU is named by the instruction set extensions that
libraries choose their kernels by: other kernels add in another order, which changes the last bits of a score.
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
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}  # some libraries also choose by vendor
# The extensions by which ONNX Runtime, oneDNN, MKL, OpenBLAS and NumPy choose kernels: of x86-64, then of ARM.
EXTENSIONS = (
    "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8",
    "amx_bf16", "amx_fp16", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_ON_CPU = re.compile(r"\bcpu( [^()]*)?\)")


def hash_files(*paths: Path) -> str:
    """Hash the concatenated contents of the files with SHA-256."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def hash_file_set(paths: Iterable[Path]) -> str:
    """Hash names and contents of files with SHA-256, whatever their folders and their order."""
    entries = sorted(f"{hash_files(path)} {path.name}" for path in paths)
    return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


def hash_module(module: Any, *, weights_only: bool = False) -> str:
    """Hash the weights of a PyTorch module and the settings of its parts with SHA-256.

    Weights count with their names, types and shapes. The settings of a part are its class and its plain attributes: a
    threshold or a number of heads decides the boxes as much as the weights do, but is not one of them. `weights_only`
    is for a module whose attributes change while it runs.
    """
    import torch

    digest = hashlib.sha256()
    for name, part in () if weights_only else module.named_modules():
        digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}".encode())
        plain = sorted(
            (key, value) for key, value in vars(part).items() if key not in IGNORED_ATTRIBUTES and _is_plain(value)
        )
        digest.update(repr(plain).encode("utf-8", "backslashreplace"))
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        packed = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a view of bytes needs a stride of 1
        digest.update(packed.copy_(tensor.detach().flatten()).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# Attributes that decide nothing: where transformers read the model from, with which kernels, whether it is in training.
IGNORED_ATTRIBUTES = ("name_or_path", "training", "_use_kernels")


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers and strings alone, so that every process writes it alike."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def model_fingerprint(model: Any, score_floor: float, device: str, around: object = "") -> str:
    """Return the fingerprint of a PyTorch model; `around` is what else decides its boxes."""
    hashed = hash_module(model)
    if around:
        hashed = hashlib.sha256(f"{hashed} {around}".encode()).hexdigest()
    return f"{type(model).__name__} (floor={score_floor:g} {device_fingerprint(device)}) sha256:{hashed}"


def device_fingerprint(device: str) -> str:
    """Return the kind and model of a device, not its number: another model may round differently."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return f"cpu {instruction_set()}"
    if kind != "cuda":
        return kind
    import torch

    return f"cuda {torch.cuda.get_device_name(device)}"


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """Describe the processor, for example `x86-64 amd avx fma avx2`."""
    machine = {"AMD64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    try:
        return _describe_cpu(machine, CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return " ".join(filter(None, (machine, _cpu_brand())))


def _describe_cpu(machine: str, info: str) -> str:
    """Describe the first processor in the text of /proc/cpuinfo."""
    pairs = (line.partition(":") for line in reversed(info.split("\n\n")[0].splitlines()))
    first = {key.strip(): value.strip() for key, _, value in pairs}
    vendor = first.get("vendor_id") or first.get("CPU implementer", "")
    has = set((first.get("flags") or first.get("Features", "")).split())
    return " ".join(filter(None, (machine, VENDORS.get(vendor, vendor), *(name for name in EXTENSIONS if name in has))))


def _cpu_brand() -> str:
    """Return the CPU's name on a system without /proc, such as `Apple M1`."""
    try:
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        brand = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        brand = platform.processor()
    return re.sub(r"[()]+", " ", brand).strip()


def differs_only_in_cpu(first: str, second: str) -> bool:
    """Return whether two fingerprints differ at most in the CPU."""
    return bool(_ON_CPU.search(first)) and _ON_CPU.sub("cpu)", first) == _ON_CPU.sub("cpu)", second)


def describe_difference(expected: str, actual: str) -> str:
    """Describe the difference between two fingerprints; only the processors, if nothing else differs."""
    if differs_only_in_cpu(expected, actual):
        cpus = [match[1] or "" if (match := _ON_CPU.search(text)) else "" for text in (expected, actual)]
        expected_cpu, actual_cpu = (cpu.strip() or "not recorded" for cpu in cpus)
        return f"the CPU was {expected_cpu} and is {actual_cpu} here"
    return f"it was {expected} and is {actual} here"
