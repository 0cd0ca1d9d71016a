"""The kinds of fuzzed input: how each is made, spoiled and used (used by fuzz.py).

An attempt gives None (fine), raises an `ObjectSeekerError` (rejected: fine), or gives a sentence on what was taken for
whole and is not. Everything else that it raises is a finding.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from fuzz_annotations import write_dataset
from fuzz_mutations import Rng, pick, read_tree, spoiled_bytes, spoiled_json, spoiled_word, write_tree

from objectseeker import Defense, Detections, Halves, ObjectSeeker, ObjectSeekerError, Rule, detectors
from objectseeker.datasets import match_classes, open_dataset
from objectseeker.detectorguard.features import ObjectnessFeatures, add_features, read_features
from objectseeker.files.images import image_size, load_image
from objectseeker.runs.run import Run, open_run
from objectseeker.runs.tables import write_image_index

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from detectorguard_network import write_network
from observe_job import make_dataset, run_here

SIZE = (20, 14)


def generator(seed: int, kind: str, number: int) -> Rng:
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), number])


class Kind:
    """Inputs of one kind; the files they need are in `folder`."""

    name: ClassVar[str]
    turns: ClassVar[int] = 10  # inputs in each round: fewer where they take long
    seconds: ClassVar[float] = 30.0  # after which one hangs: far more than any takes, also on a busy machine

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, rng: Rng) -> Any:
        """Make the input; gives what `judge` needs to know of it."""
        raise NotImplementedError

    def judge(self, made: Any) -> str | None:
        """Use the input as a user would."""
        raise NotImplementedError

    def attempt(self, rng: Rng) -> str | None:
        return self.judge(self.write(rng))


class Images(Kind):
    name = "images"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seeds = _images()

    def write(self, rng: Rng) -> Path:
        suffix, content = pick(rng, self._seeds)
        file = self.folder / f"image{suffix}"
        file.write_bytes(spoiled_bytes(rng, content))
        return file

    def judge(self, made: Path) -> str | None:
        rejected = None
        try:
            size = image_size(made)
        except ObjectSeekerError as error:
            rejected = error
        image = load_image(made)
        if rejected is not None:
            return f"the size was rejected ({rejected}), the image was not"
        if image.dtype != np.uint8 or image.ndim != 3 or (image.shape[1], image.shape[0]) != size:
            return f"the file is said to have {size} pixels and gives an array of {image.shape}"
        return None


class Annotations(Kind):
    name = "annotations"

    def write(self, rng: Rng) -> tuple[str, bool, bool]:
        root = self.folder / "data"
        os.chdir(self.folder)
        spec = write_dataset(rng, root)
        os.chdir(root)
        return spec, bool(rng.random() < 0.1), bool(rng.random() < 0.1)

    def judge(self, made: tuple[str, bool, bool]) -> str | None:
        spec, strict, outside = made
        dataset = open_dataset(spec, strict=strict, allow_outside_paths=outside)
        for entry in dataset.images:
            if not np.isfinite(entry.ground_truth.xyxy).all():
                return f"{entry.id!r} has a box that is none"
        write_image_index(dataset.images, io.BytesIO())  # what observe would do next
        warnings = [*dataset.warnings]
        if dataset.names:
            warnings += match_classes(dataset.names, ("cat", "car", "dog", *dataset.names)).warnings
        for warning in warnings:
            if len(warning.splitlines()) != 1 or len(warning) > 3000:
                return f"a warning of {len(warning.splitlines())} lines, {len(warning)} characters: {warning[:300]!r}"
        return None


class Graphs(Kind):
    name = "onnx"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import onnx
        from detector_graphs import BUILDERS, build

        self._onnx: Any = onnx
        names = {"names": "{0: 'cat', 1: 'dog', 2: 'cow'}"}
        box = (10, 10, 40, 40)
        files = [build(layout, folder / f"{layout}.onnx", box, (30, 30), metadata=names) for layout in BUILDERS]
        self._seeds = [file.read_bytes() for file in files]

    def write(self, rng: Rng) -> tuple[Path, dict[str, Any]]:
        content = pick(rng, self._seeds)
        file = self.folder / "spoiled.onnx"
        file.write_bytes(self._spoiled_model(rng, content) if rng.random() < 0.6 else spoiled_bytes(rng, content))
        layout = pick(rng, (None, None, None, "yolox", "yolov8", "detr", spoiled_word(rng)))
        options = {"layout": layout, "input_size": pick(rng, (None, None, None, None, 64, 32, 33))}
        return file, options

    def judge(self, made: tuple[Path, dict[str, Any]]) -> str | None:
        file, options = made
        detector = detectors.load_detector(f"onnx:{file}", workers=1, **options)
        image = np.full((SIZE[1], SIZE[0], 3), 200, np.uint8)
        for boxes in ObjectSeeker(detector, Rule(), masks=Halves(1))([image]):
            if not isinstance(boxes, Detections):
                return f"the detector's boxes are {boxes!r}"
        return None

    def _spoiled_model(self, rng: Rng, content: bytes) -> bytes:
        """The graph with a name, a shape, a number or its metadata spoiled, still a protocol buffer."""
        model = self._onnx.load_from_string(content)
        graph, way = model.graph, int(rng.integers(6))
        word = spoiled_word(rng).encode("utf-8", "replace").decode()
        if way == 0:
            model.metadata_props[0].value = pick(
                rng, (word, "{2000000000: 'x'}", "{'a': 'b'}", "{0: 'cat'", "[" * 500, "{0: 'a\\nb', 1: [], 2: None}")
            )
        elif way == 1:
            pick(rng, graph.node).op_type = pick(rng, ("Identity", "Add", "Concat", word))
        elif way == 2:
            shape = pick(rng, [*graph.input, *graph.output]).type.tensor_type.shape
            if shape.dim:
                pick(rng, shape.dim).dim_value = int(pick(rng, (-1, 0, 1, 2, 5, 85, 2**31, 2**62)))
        elif way == 3:
            tensor = pick(rng, graph.initializer)
            tensor.raw_data = spoiled_bytes(rng, tensor.raw_data)[: len(tensor.raw_data)].ljust(len(tensor.raw_data))
        elif way == 4:
            tensor = pick(rng, graph.initializer)
            tensor.data_location = self._onnx.TensorProto.EXTERNAL
            pair = tensor.external_data.add()
            pair.key, pair.value = "location", pick(rng, ("weights.bin", "../up", "/etc/passwd", "", word))
        else:
            node = pick(rng, graph.node)
            if node.input:
                node.input[int(rng.integers(len(node.input)))] = pick(rng, (word, "images", "c0", node.output[0]))
        return bytes(model.SerializeToString())


class Stores(Kind):
    name = "stores"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._run = folder / "run"
        spec = make_dataset(folder / "images", 5)
        (folder / "images" / "3.png").write_bytes(b"torn")
        run = run_here(spec, self._run, images_per_part=2)
        add_features(run, ObjectnessFeatures(write_network(folder / "objectness.onnx"), input_size=(96, 89)))
        self._files = read_tree(self._run)
        self._whole, self._identity, self._count = _content(run), run.fingerprint, run.finished

    def write(self, rng: Rng) -> Path:
        """Files of the run with spoiled bytes, swapped, lost, doubled or renamed."""
        files = dict(self._files)
        for _ in range(int(rng.integers(1, 3))):
            name, other = pick(rng, sorted(files)), pick(rng, sorted(files))
            way = int(rng.integers(8))
            if way <= 3 and not (name == "run.json" and way == 3):
                files[name] = spoiled_bytes(rng, files[name])
            elif way == 3:
                files[name] = spoiled_json(rng, json.loads(self._files[name]))
            elif way == 4:
                files[name], files[other] = files[other], files[name]
            elif way == 5 and len(files) > 1:
                del files[name]
            elif way == 6:
                files[f"{name.rpartition('/')[0] or 'parts'}/00000{int(rng.integers(4))}{name[-25:]}"] = files[name]
            else:
                files[name.replace("parts/", "pending/")] = files[name]
        write_tree(self._run, files)
        return self._run

    def judge(self, made: Path) -> str | None:
        run = open_run(made)
        stored = _content(run)  # rejects damaged parts
        changed = [key for key, value in stored.items() if self._whole.get(key) != value]
        if changed:
            return f"{changed[0]} is not as it was stored, without a word"
        if run.complete and run.finished != self._count:
            return f"a run of {self._count} images is said to be complete with {run.finished}"
        if run.fingerprint != self._identity:
            return "run.json was changed without a word"
        return None


class Defenses(Kind):
    name = "defenses"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = folder / "defense.json"
        Defense.for_detector("onnx:model.onnx", masks=Halves(3), class_names=("cat", "dog")).save(self._file)
        self._content = self._file.read_bytes()
        self._whole = Defense.load(self._file)

    def write(self, rng: Rng) -> Path:
        if rng.random() < 0.7:
            self._file.write_bytes(spoiled_json(rng, json.loads(self._content)))
        else:
            self._file.write_bytes(spoiled_bytes(rng, self._content))
        return self._file

    def judge(self, made: Path) -> str | None:
        defense = Defense.load(made)
        stated = json.loads(made.read_bytes()).get("sha256")  # null is none, as if it were not there
        if defense.sha256 != self._whole.sha256 and stated is not None:
            return "a defense was changed and its checksum was not"
        json.dumps(defense.to_dict())
        width, height = SIZE
        try:
            masks = defense.masks.masks(width, height)
        except MemoryError:
            return f"masks {str(defense.masks)[:60]} need more memory than there is"
        return None if len(masks) else f"the masks {defense.masks} are none"


def _images() -> list[tuple[str, bytes]]:
    """A small image in every format and mode that is read."""
    noise = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 4), dtype=np.uint8)
    color, gray = PIL.Image.fromarray(noise[..., :3]), PIL.Image.fromarray(noise[..., 0])
    deep = PIL.Image.fromarray(noise[..., 0].astype(np.uint16) * 256)
    clear = PIL.Image.fromarray(noise)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    wanted: list[tuple[str, PIL.Image.Image, dict[str, Any]]] = [
        (".png", color, {"exif": exif}),
        (".png", clear, {}),
        (".png", deep, {}),
        (".png", color.convert("P"), {"transparency": 3}),
        (".png", gray.convert("1"), {}),
        (".jpg", color, {"exif": exif}),
        (".jpg", color, {"progressive": True}),
        (".jpg", gray, {}),
        (".jpg", color.convert("CMYK"), {}),
        (".gif", color.convert("P"), {"save_all": True, "append_images": [color.convert("P")]}),
        (".bmp", color, {}),
        (".bmp", gray, {}),
        (".webp", clear, {"lossless": True, "exif": exif}),
        (".webp", color, {}),
        (".tif", color, {"exif": exif}),
        (".tif", color, {"compression": "tiff_lzw"}),
        (".tif", color, {"compression": "tiff_deflate"}),
        (".tif", deep, {}),
        (".tif", PIL.Image.fromarray(noise[..., 0].astype(np.float32) / 255), {}),
        (".ppm", color, {}),
        (".pgm", gray, {}),
        (".pgm", deep, {}),
    ]
    made = []
    for suffix, image, options in wanted:
        stream = io.BytesIO()
        image.save(stream, {".jpg": "JPEG", ".tif": "TIFF", ".pgm": "PPM"}.get(suffix, suffix[1:].upper()), **options)
        made.append((suffix, stream.getvalue()))
    return made


def _content(run: Run) -> dict[str, str]:
    """What a run holds, image by image: boxes and objects, features of the baseline, or why it could not be read."""
    content = {image.id: _digest(image) for image in run.images()}
    content |= {f"features of {key}": _hash(part) for key, part in zip(content, read_features(run), strict=True)}
    return content | {f"reason of {image.id}": image.reason for image in run.broken}


def _hash(array: Any) -> str:
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def _digest(image: Any) -> str:
    """Everything about an observed image that a figure may rest on."""
    observation = image.observation
    digest = hashlib.sha256(repr((image.id, str(image.path), observation.width, observation.height)).encode())
    for boxes in (observation.base, *observation.masked, image.ground_truth):
        for array in (boxes.xyxy, boxes.score, boxes.label):
            digest.update(str(array.shape).encode() + array.tobytes())
    for flags in (image.ignore, image.crowd):
        digest.update(flags.tobytes())
    return digest.hexdigest()
