"""What may be asked of any detector around a network, however the network is run."""

from __future__ import annotations

from dataclasses import dataclass

from objectseeker.detectors.network.layouts import Layout
from objectseeker.detectors.network.preprocess import Size
from objectseeker.detectors.network.results import SCORE_FLOOR
from objectseeker.detectors.network.views import MaskBy
from objectseeker.errors import require_count


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """`layout` (a text for `layouts.parse`, or a `Layout`), `input_size` (a side, or width, height) and `batch` are up
    to the network and the device where they are None. Boxes scored below `score_floor` are not returned; `mask_by` is
    explained in `views`.
    """

    layout: str | Layout | None = None
    input_size: int | tuple[int, int] | None = None
    score_floor: float = SCORE_FLOOR
    batch: int | None = None
    device: str = "cpu"
    mask_by: MaskBy = "fill"

    def __post_init__(self) -> None:
        if self.batch is not None:
            require_count(self.batch, "batch")

    def describe(self, layout: Layout, size: Size, batch: int) -> str:
        """What decides the boxes beside weights and device, as identities say it, once the open ones are settled."""
        return f"{layout.describe()} {size[0]}x{size[1]} {self.mask_by} batch={batch} floor={self.score_floor:g}"
