"""Train with the masks of the defense: one call in your training loop, here around a very small network.

python train_with_masks.py
"""

import numpy as np
import torch

from objectseeker.training import mask_strip

rng = np.random.default_rng(0)
torch.manual_seed(0)


def next_sample():
    """Your dataset: an image, its boxes (corners, pixels) and their labels. Here one bright square on noise."""
    image = rng.integers(0, 90, (64, 64, 3), np.uint8)
    x, y = rng.integers(0, 40, 2)
    image[y : y + 24, x : x + 24] = 220
    return image, np.array([[x, y, x + 24, y + 24]], np.float64), np.array([0])


network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 9, stride=8, padding=4), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 3, padding=1)
)
optimizer = torch.optim.Adam(network.parameters(), 0.02)
losses = []
for _ in range(40):
    images, targets = [], []
    for _ in range(8):
        image, boxes, labels = next_sample()
        image, boxes, labels = mask_strip(image, boxes, labels, rng=rng)  # this is all: what remains, and its targets
        target = np.zeros((8, 8), np.float32)
        for x1, y1, x2, y2 in boxes / 8:
            target[int((y1 + y2) / 2), int((x1 + x2) / 2)] = 1  # the cell in the middle of what is visible
        images.append(image.transpose(2, 0, 1) / np.float32(255))
        targets.append(target)
    logits = network(torch.from_numpy(np.stack(images)))[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, torch.from_numpy(np.stack(targets)), pos_weight=torch.tensor(20.0)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
for begin in range(0, len(losses), 10):
    print(f"steps from {begin}: mean loss {np.mean(losses[begin : begin + 10]):.2f}")
