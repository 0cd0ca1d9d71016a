"""Your torch module: one line around it, and it is masked, batched and suppressed on its own device.

python torch_module.py
"""

import numpy as np
import torch

from objectseeker import Halves, ObjectSeeker, Rule
from objectseeker.detectors.torch_module import torch_detector


class YourNetwork(torch.nn.Module):
    """Replace with yours: float images N x 3 x H x W in, boxes (corners, pixels) and scores of each class out.

    It looks at 64 places; the scores of a place are how red, green and blue it is.
    """

    def forward(self, images):
        color = torch.nn.functional.avg_pool2d(images, 8).flatten(2).transpose(1, 2) / 255
        rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        corner = torch.stack([columns, rows], dim=-1).reshape(1, -1, 2).to(images) * 8
        return torch.cat([corner, corner + 8], dim=2).expand(len(images), -1, -1), color


detector = torch_detector(YourNetwork(), names=("red", "green", "blue"), input_size=64)
seeker = ObjectSeeker(detector, Rule(base_threshold=0.8, mask_threshold=0.9), masks=Halves(6))

image = np.full((128, 128, 3), 20, np.uint8)
image[32:48, 64:80, 0] = 250
(found,) = seeker([image])
for box, score, label in zip(found.xyxy, found.score, found.label, strict=True):
    print(detector.names[label], f"{score:.2f}", box.tolist())
