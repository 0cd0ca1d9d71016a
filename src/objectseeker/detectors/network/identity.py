"""What tells one detector from another: hashes of files and of module weights, and names made of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def of_files(*paths: Path) -> str:
    """SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def of_module(module: Any) -> str:
    """SHA-256 of a PyTorch module's class and of every weight, name, type and shape included."""
    import torch

    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}".encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def of_model(model: Any, score_floor: float, device: str, around: object = "") -> str:
    """The identity of a PyTorch model that resizes and suppresses by itself; `around` decides its boxes, too."""
    hashed = of_module(model)
    if around:
        hashed = hashlib.sha256(f"{hashed} {around}".encode()).hexdigest()
    return f"{type(model).__name__} (floor={score_floor:g} {device}) sha256:{hashed}"
