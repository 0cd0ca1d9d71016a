"""AP50 under attack: undefended, our defenses, other people's baselines, and compositions, step by step.

    python scripts/compare_defenses.py patches OUT --dataset voc:VOCdevkit:val --sample 150 --device cuda
    python scripts/compare_defenses.py observe OUT --yolox yolox_nano.onnx --processes 16
    python scripts/compare_defenses.py time OUT --dataset voc:VOCdevkit:val --sample 20
    python scripts/compare_defenses.py table OUT

`patches` trains one patch per attack on the built-in detector and writes the attacked images; against each baseline
another one, through its filter, whose gradient is taken to be 1 (BPDA, Athalye et al. 2018). With
`--nutnet n_13.pth` NutNet is one of the baselines. With `--yolox` the same attacks are trained on YOLOX-Nano, by the
gradients of yolox_gradients.py. `observe` observes the clean and all attacked images with every detector; it resumes.
`time` measures what an image costs, all defenses in turn on each image. `table` evaluates every pair and writes
results.json and table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from data_files import add_data_option, save_data

from objectseeker import Defense, Patch, open_dataset, open_run
from objectseeker.attack import AttackBudget, attack_dataset
from objectseeker.attack.setup import load_attack
from objectseeker.attack.universal import PatchTraining, Placement, load_placed_images
from objectseeker.attack.whitebox import straight_through
from objectseeker.cli._options import change_settings
from objectseeker.core.masks import Image
from objectseeker.core.recipes import parse_recipe
from objectseeker.core.threats import ThreatModel
from objectseeker.files.atomic import save_json, save_text
from objectseeker.metrics.attacked import evaluate_attacked
from objectseeker.runs.observe import select_images
from objectseeker.text import to_markdown

BASELINES = Path(__file__).parents[1] / "examples" / "baselines"
ATTACKS = {  # name: placement, area, trained against
    "far-1": ("far", 0.01, "undefended"),
    "far-4": ("far", 0.04, "undefended"),
    "random-4": ("random", 0.04, "undefended"),
    "person-12": ("on:person", 0.12, "undefended"),
    "adaptive": ("random", 0.04, "defended"),
}
YOLOX = "yolox-"  # begins the names of attacks that are trained on YOLOX
YOLOX_MASKS, YOLOX_GRADIENTS = "halves:9", "python:yolox_gradients:detector"
AGAINST = "against-"  # begins the names of attacks that are trained against a baseline
MAX_TRAININGS = 8  # at a time: they share a GPU
OURS_ONLY = ("gray-4", "adaptive")  # attacks that baselines are not measured under: they have their own
FILTERS = ("jpeg", "median", "bit_depth", "gradient_smoothing", "nutnet")
PUBLISHED = ("rule=paper", "alpha=0.8", "beta=0.5")
NAMES = {  # rows of the documentation: name and forward passes
    "builtin": ("built-in detector, undefended", 1),
    "builtin, standard": ("`builtin` (standard)", 121),
    "builtin, paper's rule": ("paper's rule (.8/.5)", 121),
    "builtin-fast, fast": ("`builtin-fast`", 29),
    "jpeg": ("JPEG, quality 50", 1),
    "median": ("median, 3 x 3", 1),
    "bit_depth": ("3 bits per channel", 1),
    "gradient_smoothing": ("local gradient smoothing", 1),
    "gradient_smoothing, composition": ("local gradient smoothing inside `halves:9`", 37),
    "nutnet": ("NutNet, blocks of 13 pixels", 1),
    "nutnet, composition": ("NutNet inside `halves:9`", 37),
    "yolox": ("YOLOX-Nano, undefended", 1),
    "yolox, standard, halves:9": ("YOLOX-Nano, `halves:9`", 37),
    "yolox, paper's rule": ("YOLOX-Nano, paper's rule (.8/.5)", 37),
}
COLUMNS = {
    **{"ms per image": "ms", "clean": "clean", "AP50 lost": "lost", "far 1 %": "far-1", "far 4 %": "far-4"},
    **{"random 4 %": "random-4", "carried": "person-12", "own": "own"},
    **{"certified far": "far", "close": "close", "over": "over"},
}
TIMES = "times.json"
ADAPTIVE_PLACE, ADAPTIVE_AREA, _ = ATTACKS["adaptive"]


ON_ONE_CORE = """
import contextlib, os, sys
with contextlib.suppress(OSError):
    os.sched_setaffinity(0, {int(sys.argv.pop(1))})
from objectseeker.cli import main
main()
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A detector as it is observed, and the defenses that its run is evaluated with, by their names in the table."""

    name: str
    detector: str
    masks: str
    defenses: dict[str, str]  # name in the table: defense name, "default" or "paper"
    own_attack: str | None = None


def rows(options: argparse.Namespace) -> Iterator[Row]:
    yield Row("builtin", "builtin", "halves:30", {"standard": "builtin", "paper's rule": "paper"})
    yield Row("builtin-fast", "builtin", "bands:0.01,spacing=2.0+bands:0.01", {"fast": "builtin-fast"})
    for name in FILTERS:
        masks = "halves:9" if name in ("gradient_smoothing", "nutnet") else "halves:1"
        composed = {"composition": "default"} if masks == "halves:9" else {}
        if name != "nutnet" or options.nutnet:
            yield Row(name, f"python:baselines:{name}", masks, composed, f"{AGAINST}{name}")
    if options.yolox:
        defenses = {"standard, halves:9": "default", "paper's rule": "paper"}
        yield Row("yolox", f"onnx:{options.yolox}", YOLOX_MASKS, defenses)


def patches(options: argparse.Namespace) -> None:
    """Train the patches, several at a time, and write the attacked images."""
    blank = options.out / "blank.png"
    PIL.Image.new("RGB", (64, 64), (127, 127, 127)).save(blank)
    drawn = {"sample": options.sample, "seed": options.seed, "patch_image": blank}
    attack_dataset(options.dataset, "random", patch=Patch(0.04), out=options.out / "attacks" / "gray-4", **drawn)
    names = [*ATTACKS, *(f"{YOLOX}{name}" for name in ATTACKS if options.yolox)]
    names += [f"{AGAINST}{name}" for name in FILTERS if name != "nutnet" or options.nutnet]
    missing = [name for name in names if not (options.out / "attacks" / name / "attack.json").exists()]
    workers = min(options.processes, MAX_TRAININGS)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name in pool.map(train, missing, repeat(options)):
            print(name, flush=True)


def train(name: str, options: argparse.Namespace) -> str:
    """Train one patch and write the attacked images; return its name."""
    out = options.out / "attacks" / name
    known = {"sample": options.sample, "seed": options.seed}
    if name.startswith(AGAINST):
        file = options.out / f"{name}.png"
        pixels = train_against(name.removeprefix(AGAINST), options)
        PIL.Image.fromarray(pixels).resize((960, 960), PIL.Image.Resampling.NEAREST).save(file)
        attack_dataset(options.dataset, ADAPTIVE_PLACE, patch=Patch(ADAPTIVE_AREA), out=out, patch_image=file, **known)
        return name
    place, area, system = ATTACKS[name.removeprefix(YOLOX)]
    training: dict[str, Any] = {"steps": options.steps, "device": options.device, "system": system}
    defense = Defense.load("builtin")
    if name.startswith(YOLOX):  # the detector is on the device of its own accord
        os.environ |= {"YOLOX": str(options.yolox), "YOLOX_DEVICE": options.device or "cpu"}
        defense, training["device"] = Defense.for_detector(YOLOX_GRADIENTS, masks=parse_recipe(YOLOX_MASKS)), None
    attack_dataset(options.dataset, place, defense, Patch(area), out=out, **training, **known)
    return name


def train_against(name: str, options: argparse.Namespace) -> Image:
    """Train a patch on the built-in detector behind a filter."""
    sys.path.insert(0, str(BASELINES))
    import baselines  # type: ignore[import-not-found]

    setup = load_attack(Defense.for_detector("builtin"), mode="white-box", device=options.device)
    assert setup.white is not None
    white = replace(setup.white, predict=Bypassed(setup.white.predict, baselines.FILTERS[name]))
    data, where = open_dataset(options.dataset), Placement.parse(ADAPTIVE_PLACE)
    images = load_placed_images(data, where, options.sample, options.seed)
    budget = AttackBudget(steps=options.steps)
    setup = replace(setup, white=white, patch=Patch(ADAPTIVE_AREA), budget=budget, seed=options.seed)
    return PatchTraining(setup, data, images, where).run()[0]


class Bypassed:
    """A network behind a filter, for gradients: forward through the filter, backward as if it were not there."""

    def __init__(self, predict: Any, image_filter: Any) -> None:
        self.predict, self.filter = predict, image_filter

    def __call__(self, inputs: Any) -> Any:
        import torch

        pixels = inputs.detach().round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
        filtered = np.stack([self.filter(np.ascontiguousarray(image)) for image in pixels])
        seen = torch.from_numpy(filtered).to(inputs.device).permute(0, 3, 1, 2).float()
        return self.predict(straight_through(seen, inputs))


def observe(options: argparse.Namespace) -> None:
    """Observe everything in processes of one core each; a requested GPU is for the built-in detector."""
    sets = {"clean": options.dataset or json.loads((options.out / "attacks/far-1/attack.json").read_text())["dataset"]}
    for folder in sorted((options.out / "attacks").iterdir()):
        sets[folder.name] = f"coco:{folder / 'annotations.json'}:{folder / 'images'}"
    jobs = []
    for row in rows(options):
        for name, dataset in sets.items():
            if name.startswith(YOLOX) != (row.name == "yolox" and name not in ("clean", "gray-4")):
                continue
            if name != row.own_attack and (name.startswith(AGAINST) or (row.own_attack and name in OURS_ONLY)):
                continue
            words = [
                "observe",
                dataset,
                "-d",
                row.detector,
                "--masks",
                row.masks,
                "--out",
                options.out / "runs" / row.name / name,
            ]
            words += ["--sample", options.sample, "--seed", options.seed] if name == "clean" else []
            words += ["--device", options.device] if row.detector == "builtin" and options.device else []
            jobs.append([str(word) for word in words])
    jobs.sort(key=lambda words: ("halves:9" not in words, "builtin" not in words))  # the longest first
    environment = os.environ | {"PYTHONPATH": f"{BASELINES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    if options.device:
        environment |= {"BASELINE_DEVICE": options.device, "NUTNET_DEVICE": options.device}
    environment |= {"OMP_NUM_THREADS": "1"} | ({"NUTNET_WEIGHTS": str(options.nutnet)} if options.nutnet else {})
    cores = sorted(os.sched_getaffinity(0))
    free = list(cores[: options.processes])

    def work(words: list[str]) -> None:
        core = free.pop()
        command = [sys.executable, "-c", ON_ONE_CORE, str(core), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        free.append(core)
        print(done.returncode, " ".join(words[-1:]), words[words.index("--out") + 1], flush=True)
        if done.returncode:
            print(done.stderr[-600:], flush=True)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(work, jobs))


def measure_times(options: argparse.Namespace) -> None:
    """Write times.json: the median milliseconds per image, by the names of the table."""
    sys.path.insert(0, str(BASELINES))
    calls: dict[str, Callable[[list[Image]], object]] = {}
    for row in rows(options):
        seeker = Defense.for_detector(row.detector, masks=parse_recipe(row.masks)).build()
        calls[row.name] = seeker.detector
        calls |= {f"{row.name}, {label}": seeker for label in row.defenses}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for entry in select_images(open_dataset(options.dataset), options.sample, options.seed):
        image = entry.load()
        for name, call in calls.items():
            begin = time.perf_counter()
            call([image])
            seconds[name].append(time.perf_counter() - begin)
    times = {name: round(1000 * float(np.median(values)), 1) for name, values in seconds.items()}
    save_json(options.out / TIMES, times)
    print(json.dumps(times, indent=1))


def table(options: argparse.Namespace) -> None:
    """Evaluate every pair of clean and attacked runs; a pair that was evaluated is not evaluated again.

    Certificates and certified scores are about a patch of 1 %; certified and lost is about the patch that was drawn.
    """
    pairs = [
        (row, label, named, folder)
        for row in rows(options)
        for folder in sorted((options.out / "runs" / row.name).glob("*"))
        if folder.name != "clean"
        for label, named in (row.defenses or {"": "default"}).items()
    ]
    jobs = [(options.out, row.name, named, folder, area) for row, _, named, folder in pairs for area in (0.01, 0.04)]
    jobs = [job if pairs[n // 2][1] else (*job[:4], 0.01) for n, job in enumerate(jobs)]  # the second one is for `lost`
    with ProcessPoolExecutor(options.processes) as pool:
        files = list(pool.map(evaluate_pair, jobs))
    results: dict[str, dict[str, Any]] = {}
    for (row, label, _, folder), small, large in zip(pairs, files[::2], files[1::2], strict=True):
        found = json.loads(small.read_text())
        attack = "own" if folder.name == row.own_attack else folder.name.removeprefix(YOLOX)
        measured = {row.name: ("undefended", "ap50")}
        if label:
            name = f"{row.name}, {label}"
            measured |= {name: ("defended", "ap50"), f"{name}, output": ("defended", "output_ap50")}
            measured |= {f"{name}, output by certified score": ("defended", "ranked_ap50")}
        for name, (system, key) in measured.items():
            entry = results.setdefault(name, {"clean": found["clean"][system][key]})
            entry[attack] = found["attacked"][system][key]
        if label:
            entry = results[f"{row.name}, {label}"]
            lost = [json.loads(file.read_text()) for file in (small, large)]
            for key in ("certified_under_attack", "certified_and_lost"):
                entry[key] = entry.get(key, 0) + sum(sum(one[key].values()) for one in lost)
            entry |= {key: found["clean"]["defended"]["certified_recall"][key] for key in ("far", "close", "over")}
    columns = ["clean", "gray-4", *ATTACKS, "own", "far", "close", "over"]
    lines = []
    for name, entry in results.items():
        cells = {key: f"{entry[key]:.1f}" if key in entry else "-" for key in columns}
        verdict = f"{entry['certified_and_lost']} of {entry['certified_under_attack']}" if "far" in entry else "-"
        lines.append({"": name} | cells | {"certified and lost": verdict})
    times = json.loads((options.out / TIMES).read_text()) if (options.out / TIMES).exists() else {}
    for name in times.keys() & results.keys():
        results[name]["ms"] = times[name]
    save_json(options.out / "results.json", results)
    save_data(options.data, [documented(name, results) for name in NAMES if name in results])
    save_text(options.out / "table.md", to_markdown(lines))
    print(to_markdown(lines))


def documented(name: str, results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return a row of the documentation's table: docs/results/data/defenses.json."""
    entry, undefended = results[name], results["yolox" if name.startswith("yolox") else "builtin"]
    title, passes = NAMES[name]
    own = "own" if "own" in entry else "adaptive" if ", " in name else "random-4"
    lost = None if entry is undefended else undefended["clean"] - entry["clean"]
    values = entry | {"lost": lost, "own": entry.get(own)}
    cells = {column: "-" if values.get(key) is None else f"{values[key]:.1f}" for column, key in COLUMNS.items()}
    return {"defense": title, "passes": str(passes)} | cells


def evaluate_pair(job: tuple[Path, str, str, Path, float]) -> Path:
    """Evaluate one attacked run next to its clean one; return the file of the result."""
    out, row, named, folder, area = job
    file = out / "results" / f"{row}-{named}-{folder.name}-{area:g}.json"
    if not file.exists():
        run, attacked = open_run(folder.parent / "clean"), open_run(folder)
        defense = run.defense() if named in ("default", "paper") else run.bind_defense(Defense.load(named))
        if named == "paper":
            defense = change_settings(defense, PUBLISHED)
        found = evaluate_attacked(run, attacked, defense, threat=ThreatModel(area=area), intervals=False)
        file.parent.mkdir(exist_ok=True)
        save_json(file, found.to_dict())
    return file


STEPS = {"patches": patches, "observe": observe, "time": measure_times, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--dataset", help="images to attack, such as voc:VOCdevkit:val")
    parser.add_argument("--sample", type=int, default=150, help="number of images")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of training")
    parser.add_argument("--steps", type=int, default=200, help="of training a patch")
    parser.add_argument("--device", help="torch device of training, and of observing with the built-in detector")
    parser.add_argument("--nutnet", type=Path, help="weights of NutNet, n_13.pth of its repository")
    parser.add_argument("--yolox", type=Path, help="yolox_nano.onnx")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that observe")
    add_data_option(parser)
    options = parser.parse_args()
    if options.nutnet:
        os.environ["NUTNET_WEIGHTS"] = str(options.nutnet)
    options.out.mkdir(parents=True, exist_ok=True)
    STEPS[options.step](options)


if __name__ == "__main__":
    main()
