"""One patch for all images of a dataset: its placement, its training, the attacked dataset.

The published patches are of this kind. DPatch is in a corner of the image, Google's patch is at a random place, and the
patches of AdvPatch and its successors are carried by every object of a class. A patch lowers average precision in two
ways, and the training pursues both: it hides objects and fabricates boxes. Against a defense it does so in masked
views, too, and plants boxes that filter the right masked boxes without fitting the object.

Images are finished in raw pixels and saved losslessly with their annotations, so that any tool can run on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import PIL.Image

from objectseeker.attack.artifacts import file_stems, save_image
from objectseeker.attack.losses import DegradingTargets, degrading_loss
from objectseeker.attack.optimizers import descend, random_search
from objectseeker.attack.pipeline import AttackBudget, AttackedSystem, Patches, Progress, no_progress, paste
from objectseeker.attack.setup import AttackSetup, Mode, load_attack
from objectseeker.attack.whitebox import PatchRenderer, Tensor, WhiteBox, fill_views, straight_through
from objectseeker.core.boxes import Detections, Floats, Ints, iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Image
from objectseeker.core.seeker import view_rectangles
from objectseeker.core.threats import Patch
from objectseeker.datasets import Dataset, DatasetImage, match_classes, open_dataset
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError, require_count
from objectseeker.files.atomic import save_json, save_text, write_atomic
from objectseeker.files.images import load_image
from objectseeker.metrics.settings import require_seed
from objectseeker.runs.observe import select_images

TRAINING_IMAGES = 64  # at most, of the dataset
IMAGES_PER_STEP = 4
CANVAS_SIDES = (24, 96)  # pixels of the trained patch along its shorter side, at least and at most
SAVED_SIDE = 1024  # pixels of patch.png
PRINTED_CENTIMETERS = 20.0
CANDIDATES = 24  # positions per axis for a patch that is far from all objects
MAX_ROTATION = 10.0  # degrees; rotation, tone and noise of a patch that is printed and carried
MAX_TONE = 0.2
NOISE = 5.0  # gray levels
FABRICATED_LIMIT = 20  # boxes of an image that the black-box attack counts
SCORED_FROM = 0.05  # and the score they need
ANNOTATIONS, IMAGES, PATCH_FILE = "annotations.json", "images", "patch.png"


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of one patch in every image.

    - corner: in the top left corner.
    - far: inside the image, at the position farthest from all objects, as `far` measures it.
    - random: at a random position inside the image.
    - on: in the center of every object of `class_name`, which carries it, as a share of its box.
    """

    kind: str
    class_name: str = ""

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Parse corner, far, random or on:CLASS."""
        kind, _, name = text.partition(":")
        if text not in ("corner", "far", "random") and not (kind == "on" and name):
            raise ObjectSeekerError(
                f"a universal patch must be placed corner, far, random, or on:CLASS such as on:person: got {text!r}"
            )
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.class_name}" if self.class_name else self.kind

    def rectangles(self, image: PlacedImage, patch: Patch, rng: np.random.Generator) -> Ints:
        """Return x, y, width and height of every drawn patch (K, 4), in raw pixels."""
        if self.class_name:
            boxes = image.objects.xyxy[image.carries]
            side = boxes[:, 2:] - boxes[:, :2]
            area = side.prod(axis=1) * patch.area
            size = np.ceil(np.sqrt(np.stack([area * patch.aspect, area / patch.aspect], axis=1)))
            corner = np.rint((boxes[:, :2] + boxes[:, 2:] - size) / 2)
            return np.concatenate([corner, size], axis=1).astype(np.int64)
        size = np.array(patch.size(*image.size))
        free = np.maximum(np.array(image.size) - size, 0)
        corner = np.zeros(2)
        if self.kind == "random":
            corner = rng.integers(0, free + 1)
        elif self.kind == "far" and len(image.objects):
            x, y = (np.unique(np.linspace(0, end, CANDIDATES).astype(np.int64)) for end in free)
            corners = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
            boxes = image.objects.xyxy[None]
            gap = np.maximum(boxes[..., :2] - (corners + size)[:, None], corners[:, None] - boxes[..., 2:])
            # The larger gap to each object along an axis, as a share of the image.
            corner = corners[np.argmax((gap / np.array(image.size)).max(axis=-1).min(axis=1))]
        return np.concatenate([corner, size])[None].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    """An image with the objects that count, and which of them carry the patch."""

    entry: DatasetImage
    pixels: Image
    objects: Detections
    carries: Ints

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class UniversalAttack:
    """One patch for a dataset, and where it was drawn.

    `pixels` is the patch as saved, `rectangles` x, y, width and height of the patches of every image, `loss_curve` the
    training loss at every step, empty for a given patch.
    """

    placement: Placement
    patch: Patch
    pixels: Image
    system: AttackedSystem | None
    mode: Mode | None
    steps: int
    seed: int
    dataset: str
    rectangles: dict[str, list[list[int]]]
    loss_curve: tuple[float, ...] = field(repr=False)

    def describe(self) -> str:
        """Return what was drawn, in one line."""
        trained = "" if self.system is None else f", trained {self.mode} against the {self.system} detector"
        return f"{sum(map(len, self.rectangles.values()))} patches in {len(self.rectangles)} images{trained}"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        return {
            "universal": str(self.placement),
            "patch": asdict(self.patch),
            "patch_sha256": hashlib.sha256(self.pixels.tobytes()).hexdigest(),
            "trained_against": self.system,
            "mode": self.mode,
            "steps": self.steps,
            "seed": self.seed,
            "dataset": self.dataset,
            "images": len(self.rectangles),
            "patches_drawn": sum(map(len, self.rectangles.values())),
            "loss_curve": list(self.loss_curve),
        }


def attack_dataset(
    dataset: Dataset | str | Path,
    placement: str,
    defense: Defense | str | Path | None = None,
    patch: Patch = Patch(),  # noqa: B008  (frozen)
    *,
    out: str | Path,
    system: AttackedSystem = "undefended",
    patch_image: str | Path | None = None,
    sample: int | None = None,
    steps: int = 100,
    mode: Mode | None = None,
    device: str | None = None,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> UniversalAttack:
    """Draw one patch into every image of a dataset and write the attacked images with their annotations.

    Args:
        dataset: An annotated dataset.
        placement: corner, far, random, or on:CLASS, where every object of the class carries the patch.
        defense: Whose detector the patch is trained against. Default: that of the built-in detector.
        patch: Area and aspect: of the image, or of the object's box if it carries the patch.
        out: A folder for images, annotations.json, patch.png, print.txt and attack.json.
        system: Train against the detector alone, "undefended", or against the whole defense, "defended".
        patch_image: Draw this patch and train none.
        sample: Attack that many images, those that `observe` draws with this seed.
        steps: Training steps.
        mode: "white-box" uses gradients, "black-box" only boxes. Default: white-box if the detector has gradients.
        device: The torch device.
        seed: Seed of the images, positions and initial pixels.
        on_progress: Called with the steps done and their number.

    Raises:
        ObjectSeekerError: The dataset has no annotations, or an option cannot be used.

    Returns:
        The patch, and where it is in every image.

    Example:
        >>> attack_dataset("coco:val2017", "corner", patch=Patch(area=0.04), out="attacked")  # doctest: +SKIP
    """
    require_seed(seed)
    require_count(steps, "steps")
    if sample is not None:
        require_count(sample, "sample")
    if patch.count != 1:
        raise ObjectSeekerError(f"a universal patch is one patch: got {patch.count}. Omit --patch-count.")
    where = Placement.parse(placement)
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    images = load_placed_images(data, where, sample, seed)
    curve: list[float] = []
    setup: AttackSetup | None = None
    if patch_image is not None:
        pixels = load_image(Path(patch_image))
    else:
        if defense is not None and not isinstance(defense, Defense):
            defense = Defense.load(defense)
        setup = load_attack(defense or Defense.for_detector("builtin"), mode=mode, device=device)
        setup = replace(setup, patch=patch, budget=AttackBudget(steps=steps), seed=seed)
        canvas, curve = PatchTraining(setup, data, images, where, system, on_progress).run()
        scale = -(-SAVED_SIDE // max(canvas.shape[:2]))
        pixels = np.ascontiguousarray(canvas.repeat(scale, axis=0).repeat(scale, axis=1))
    rectangles = {
        image.entry.id: where.rectangles(image, patch, np.random.default_rng([seed, *image.entry.id.encode()])).tolist()
        for image in images
    }
    attack = UniversalAttack(
        where,
        patch,
        pixels,
        system if setup else None,
        setup.mode if setup else None,
        steps if setup else 0,
        seed,
        data.spec,
        rectangles,
        tuple(curve),
    )
    save_universal(Path(out), attack, data, images)
    return attack


def load_placed_images(data: Dataset, placement: Placement, sample: int | None, seed: int) -> list[PlacedImage]:
    """Load images and the objects that count; `sample` of them, as `observe` draws them, or all."""
    if not data.has_ground_truth:
        raise ObjectSeekerError(
            f"a universal attack needs annotated images: got {data.spec}. Give an annotated dataset."
        )
    if placement.class_name and placement.class_name not in data.names:
        names = ", ".join(data.names[:20])
        raise ObjectSeekerError(f"the dataset has no class {placement.class_name!r}: choose from {names}")
    carrier = data.names.index(placement.class_name) if placement.class_name else None
    images = []
    for entry in data.images if sample is None else select_images(data, sample, seed):
        objects = entry.ground_truth[~entry.ignore]
        images.append(PlacedImage(entry, entry.load(), objects, np.flatnonzero(objects.label == carrier)))
    return images


def draw_rectangles(image: Image, pixels: Image, rectangles: Sequence[Sequence[int]]) -> Image:
    """Return a copy of `image` with the patch, scaled, at every rectangle x, y, width, height."""
    patch = PIL.Image.fromarray(pixels)
    for x, y, width, height in rectangles:
        scaled = np.asarray(patch.resize((width, height), PIL.Image.Resampling.BOX))
        image = paste(image, scaled, x, y)
    return image


def save_universal(out: Path, attack: UniversalAttack, data: Dataset, images: Sequence[PlacedImage]) -> None:
    """Write the attacked images, their annotations as COCO, the patch in print size, and attack.json."""
    stems = file_stems(image.entry.id for image in images)
    listed: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in images:
        key, entry = image.entry.id, image.entry
        attacked = draw_rectangles(image.pixels, attack.pixels, attack.rectangles[key])
        save_image(out / IMAGES / f"{stems[key]}.png", PIL.Image.fromarray(attacked))
        width, height = image.size
        listed.append({"id": key, "file_name": f"{stems[key]}.png", "width": width, "height": height})
        listed[-1]["patches"] = attack.rectangles[key]
        for box, label, ignore in zip(entry.ground_truth.xyxy, entry.ground_truth.label, entry.ignore, strict=True):
            x1, y1, x2, y2 = box.tolist()
            row = {"id": len(annotations) + 1, "image_id": key, "category_id": int(label), "iscrowd": int(ignore)}
            annotations.append(row | {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})
    categories = [{"id": label, "name": name} for label, name in enumerate(data.names)]
    save_json(out / ANNOTATIONS, {"images": listed, "annotations": annotations, "categories": categories})
    height, width = attack.pixels.shape[:2]
    dpi = max(width, height) / (PRINTED_CENTIMETERS / 2.54)
    printed = PIL.Image.fromarray(attack.pixels)
    write_atomic(out / PATCH_FILE, lambda stream: printed.save(stream, "PNG", dpi=(dpi, dpi)))
    save_text(out / "print.txt", print_instructions(attack, images))
    save_json(out / "attack.json", attack.to_dict())


def print_instructions(attack: UniversalAttack, images: Sequence[PlacedImage]) -> str:
    """Say how large the printed patch must be to look as it was drawn."""
    lines = [f"{PATCH_FILE} prints at {PRINTED_CENTIMETERS:g} cm along its longer side. Use matte paper."]
    if attack.placement.class_name:
        heights = [
            rectangle[3] / (box[3] - box[1])
            for image in images
            for rectangle, box in zip(attack.rectangles[image.entry.id], image.objects.xyxy[image.carries], strict=True)
        ]
        share = float(np.median(heights)) if heights else 0.0
        lines.append(
            f"The patch was drawn {share:.0%} as tall as the {attack.placement.class_name} that carries it (median): "
            f"print it {170 * share:.0f} cm tall for one of 170 cm."
        )
    else:
        lines.append(
            f"The patch was drawn on {attack.patch.area:.2%} of the image. Print it so large that it fills this share "
            "of the camera's view: twice the distance needs twice the side."
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, eq=False)
class PatchTraining:
    """The training of one patch on images of a dataset, against the detector alone or the whole defense."""

    setup: AttackSetup
    data: Dataset
    images: Sequence[PlacedImage]
    placement: Placement
    system: AttackedSystem = "undefended"
    on_progress: Progress = no_progress

    def run(self) -> tuple[Image, list[float]]:
        """Return the patch, and the loss at every step."""
        return self.by_search() if self.setup.white is None else self.by_gradients()

    @property
    def drawn_images(self) -> list[PlacedImage]:
        """The first images in which the patch is drawn."""
        drawn = [image for image in self.images if not self.placement.class_name or len(image.carries)]
        if not drawn:
            carrier = self.placement.class_name
            raise ObjectSeekerError(
                f"an image must have a {carrier} to carry the patch: got {len(self.images)} without. Choose others."
            )
        return drawn[:TRAINING_IMAGES]

    @property
    def label_map(self) -> LabelMap:
        """The detector's classes, matched to the dataset's by name."""
        names = self.setup.class_names
        return LabelMap(names, self.data.names, match_classes(self.data.names, names).dataset_labels)

    def by_gradients(self) -> tuple[Image, list[float]]:
        """Train a patch by sign gradients, a few images per step, on the network's inputs.

        The patch is pasted into the resized image here; the images that are saved are drawn in raw pixels. The
        expectation is over images and, for a random place, positions; for a carried patch over rotation, tone and
        noise, too; and against a defense over its masked views.
        """
        import torch

        white, images = cast(WhiteBox, self.setup.white), self.drawn_images
        rng = np.random.default_rng(self.setup.seed)
        groups: dict[Any, list[PlacedImage]] = {}
        for image in images:
            groups.setdefault(white.place(image.size).size, []).append(image)
        scenes = [_Scenes(self, white, members) for members in groups.values()]
        share = np.array([len(members) for members in groups.values()]) / len(images)
        tall, wide = self._canvas_size(scenes, rng)
        pixels = torch.full((3, tall, wide), 127.0) + torch.from_numpy(rng.normal(0, 30, (3, tall, wide))).float()

        def loss_of(leaf: Tensor) -> Tensor:
            return scenes[rng.choice(len(scenes), p=share)].loss(leaf[0], rng)

        start = pixels.clamp(0, 255).to(white.device)[None]
        last, _, curve = descend(start, loss_of, self.setup.budget.steps, self.on_progress)
        return last[0].round().byte().permute(1, 2, 0).cpu().numpy(), curve

    def _canvas_size(self, scenes: Sequence[_Scenes], rng: np.random.Generator) -> tuple[int, int]:
        """Return height and width of the trained patch: as many pixels as the network sees of it."""
        aspect = self.setup.patch.aspect
        seen = np.concatenate([group.rectangles(n, rng)[:, 2:] for group in scenes for n in range(len(group.images))])
        side = float(np.median(np.sqrt(seen.prod(axis=1)))) if len(seen) else 0.0
        short = float(np.clip(side * min(aspect**0.5, aspect**-0.5), *CANVAS_SIDES))
        long = round(short * max(aspect, 1 / aspect))
        return (round(short), long) if aspect >= 1 else (long, round(short))

    def by_search(self) -> tuple[Image, list[float]]:
        """Train a patch by random search: a change is kept if images are detected no better.

        Only boxes are used. Of every image the first positions drawn are kept, so that losses can be compared.
        """
        rng = np.random.default_rng(self.setup.seed)
        images, label_map = self.drawn_images[: 2 * IMAGES_PER_STEP], self.label_map
        rectangles = [self.placement.rectangles(image, self.setup.patch, rng).tolist() for image in images]
        sides = [min(width, height) for of_image in rectangles for *_, width, height in of_image]
        short = round(float(np.clip(np.median(sides or [0]), *CANVAS_SIDES)))
        start = rng.integers(0, 256, (short, max(round(short * self.setup.patch.aspect), 8), 3), dtype=np.uint8)

        def evaluate(numbers: Sequence[int], patches: Sequence[Patches]) -> list[tuple[float, bool]]:
            (pixels,) = patches[0]
            attacked = [draw_rectangles(i.pixels, pixels, r) for i, r in zip(images, rectangles, strict=True)]
            pairs = zip(self._outputs(attacked), images, strict=True)
            return [(sum(_quality(boxes, image.objects, label_map) for boxes, image in pairs) / len(images), False)]

        ((best, curve, _),) = random_search(
            [start[None]], evaluate, self.setup.budget.steps, [rng], on_progress=self.on_progress
        )
        return best[0], curve[1:]

    def _outputs(self, images: Sequence[Image]) -> Sequence[Detections]:
        """Return what the attacked system outputs."""
        pipeline = self.setup.pipeline
        if self.system == "undefended":
            return pipeline.seeker.detector(images)
        return [pipeline.rule.prune(pipeline.observe(image)) for image in images]


class _Scenes:
    """Training images of one network input size, with their objects on the network's input."""

    def __init__(self, training: PatchTraining, white: WhiteBox, images: Sequence[PlacedImage]) -> None:
        self.training, self.white, self.images = training, white, images
        self.renderer = PatchRenderer(white, [image.pixels for image in images])
        label_map = training.label_map
        self.classes = label_map.dataset_labels >= 0
        self.objects = [label_map.map_to_detector(image.objects)[0] for image in images]

    def rectangles(self, n: int, rng: np.random.Generator) -> Floats:
        """Return the patches of image n as boxes: center x, y, width, height on the network's input."""
        raw = self.training.placement.rectangles(self.images[n], self.training.setup.patch, rng)
        boxes = self.renderer.to_network(n, np.concatenate([raw[:, :2], raw[:, :2] + raw[:, 2:]], axis=1))
        return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)

    def loss(self, pixels: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the loss of a few images drawn at random; against a defense, each with one masked view."""
        import torch

        defense, is_defended = self.training.setup.defense, self.training.system == "defended"
        chosen = rng.permutation(len(self.images))[:IMAGES_PER_STEP].tolist()
        inputs = []
        for n in chosen:
            canvas = self.renderer.clean[n]
            for rectangle in self.rectangles(n, rng):
                shown, rotation = pixels, 0.0
                if self.training.placement.class_name:
                    shown, rotation = _printed(pixels, rng), float(rng.uniform(-MAX_ROTATION, MAX_ROTATION))
                canvas = _paste(canvas, shown, rectangle, rotation)
            inputs.append(straight_through(canvas.round(), canvas))
        drawn = torch.stack(inputs)
        whole = np.tile([0, 0, drawn.shape[3], drawn.shape[2]], (len(chosen), 1))
        outputs = self.white.window_outputs(drawn, whole)
        loss = degrading_loss(*outputs, self._targets(chosen, plants=is_defended))
        if not is_defended:
            return loss
        views, windows = [], []
        for image, n in zip(drawn, chosen, strict=True):
            removed = view_rectangles(defense.masks.masks(*self.images[n].size))
            view = self.renderer.view_plan(n, removed[rng.integers(1, len(removed)), None])
            filled = torch.tensor(view.filled, device=drawn.device)
            views.append(fill_views(image[None], filled, defense.fill)[0])
            windows.append(view.window[0])
        outputs = self.white.window_outputs(torch.stack(views), np.stack(windows))
        return loss + degrading_loss(*outputs, self._targets(chosen, plants=False))

    def _targets(self, chosen: Sequence[int], *, plants: bool) -> DegradingTargets:
        import torch

        count = max((len(self.objects[n]) for n in chosen), default=0)
        box, label = np.zeros((len(chosen), count, 4), np.float32), np.full((len(chosen), count), -1)
        for row, n in enumerate(chosen):
            objects = self.objects[n]
            box[row, : len(objects)] = self.renderer.to_network(n, objects.xyxy)
            label[row, : len(objects)] = objects.label
        box, label, classes = (torch.from_numpy(array).to(self.white.device) for array in (box, label, self.classes))
        score = self.training.setup.pipeline.rule.base_threshold
        return DegradingTargets(box=box, label=label, classes=classes, score=score, plants=plants)


def _printed(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the patch as a camera may see it: another brightness and contrast, and noise."""
    import torch

    contrast, brightness = rng.uniform(1 - MAX_TONE, 1 + MAX_TONE), 255 * rng.uniform(-MAX_TONE, MAX_TONE) / 2
    noise = torch.from_numpy(rng.normal(0, NOISE, tuple(pixels.shape))).float().to(pixels.device)
    return (pixels * contrast + brightness + noise).clamp(0, 255)


def _paste(canvas: Tensor, pixels: Tensor, rectangle: Floats, rotation: float) -> Tensor:
    """Return a network input with a patch at center, width and height, rotated by degrees."""
    import torch

    x, y, width, height = rectangle.tolist()
    rows = torch.arange(canvas.shape[1], device=canvas.device)[:, None] + 0.5 - y
    columns = torch.arange(canvas.shape[2], device=canvas.device)[None] + 0.5 - x
    cos, sin = np.cos(np.radians(rotation)), np.sin(np.radians(rotation))
    u, v = (columns * cos + rows * sin) * (2 / width), (rows * cos - columns * sin) * (2 / height)
    grid = torch.stack([u, v], dim=-1)[None]
    drawn = torch.nn.functional.grid_sample(pixels[None], grid.float(), padding_mode="border", align_corners=False)[0]
    return torch.where((u.abs() <= 1) & (v.abs() <= 1), drawn, canvas)


def _quality(boxes: Detections, objects: Detections, label_map: LabelMap) -> float:
    """Return the mean score of the best fitting box of each object, minus what fabricated boxes score."""
    boxes = label_map.map_to_dataset(boxes.with_min_score(SCORED_FROM))
    fits = (iou(objects.xyxy, boxes.xyxy) >= 0.5) & (objects.label[:, None] == boxes.label[None])
    best_scores = np.where(fits, boxes.score[None], 0.0).max(axis=1, initial=0.0)
    fabricated = np.sort(boxes.score[~fits.any(axis=0)])[::-1][:FABRICATED_LIMIT]
    return float(best_scores.mean() if len(best_scores) else 0.0) - float(fabricated.sum()) / FABRICATED_LIMIT
