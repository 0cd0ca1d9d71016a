"""Options that several commands share, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import ObjectSeekerError, Rule, detectors
from objectseeker.cli.console import warn
from objectseeker.core.iou_variant import AnyRule, IouRule

if TYPE_CHECKING:
    from objectseeker.evaluation import Settings
    from objectseeker.runs.run import Run

DATASETS = (
    "coco:ANNOTATIONS.json:IMAGES, voc:VOCDIR:SPLIT, kitti:DIR, yolo:DIR, list:FILE.txt, list:FILE.parquet, or a "
    "folder of images; images may lie at addresses such as s3://bucket/folder."
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that observe wrote.")]
Alpha = Annotated[float | None, typer.Option(help="Lowest mask_score, whatever the base_score.")]
Beta = Annotated[float | None, typer.Option(help="mask_score = max(alpha, base_score + (1 - base_score) * beta).")]
LowAlpha = Annotated[float | None, typer.Option(help="Evidence rule: alpha of low_score.")]
LowBeta = Annotated[float | None, typer.Option(help="Evidence rule: beta of low_score.")]
Power = Annotated[float | None, typer.Option(help="Evidence rule: exponent. Default: 1.")]
FilterIoa = Annotated[float | None, typer.Option(help="Share of a masked box a base box must explain. Default: 0.6.")]
EdgeFactor = Annotated[float | None, typer.Option(help="Factor on scores of boxes cut by their line. Default: 1.")]
ClusterDistance = Annotated[
    float | None, typer.Option(help="Boxes whose IoA is at least 1 minus this are one cluster. Default: 0.1.")
]
TauIou = Annotated[float | None, typer.Option(help="Use the IoU variant, with this IoU (the paper's: 0.8).")]
Threshold = Annotated[float | None, typer.Option(help="T: share of an object that must stay covered. Default: 0.")]
WhichBound = Annotated[str | None, typer.Option("--bound", help="exact (default) or paper.")]
PatchArea = Annotated[float | None, typer.Option("--patch", help="Patch area, a share of the image. Default: 0.01.")]
PatchAspect = Annotated[float | None, typer.Option("--aspect", help="Patch width divided by height. Default: 1.")]
PatchCount = Annotated[int | None, typer.Option("--patches", help="How many patches at once, 1 or 2. Default: 1.")]
CleanRecall = Annotated[float | None, typer.Option(help="r of CertR@r, a fraction. Default: 0.8.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines instead of tables.")]
Spec = Annotated[str, typer.Option("--detector", "-d", help=f"One of {', '.join(detectors.SPECS)}.")]
Lines = Annotated[int, typer.Option(help="Mask lines per axis; 4 masks each.")]
Layout = Annotated[str | None, typer.Option(help="Family of an ONNX graph, where it cannot be told from the graph.")]
InputSize = Annotated[int | None, typer.Option(help="Side of the network input in pixels, where it is free.")]
Batch = Annotated[int | None, typer.Option(help="Views per forward pass.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
MaskBy = Annotated[
    str | None,
    typer.Option(help="fill: paint removed pixels over. crop: cut them away, where the network takes any size."),
]
Precision = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16, on a GPU.")]


def settings_of(**given: Any) -> Settings:
    """The settings given; if no alpha or beta is, the recommended ones. alpha and beta alone are the paper's rule."""
    from objectseeker.evaluation import RECOMMENDED, Settings

    chosen = {key: value for key, value in given.items() if value is not None}
    if chosen.keys() & {"alpha", "beta", "low_alpha", "low_beta"}:
        return Settings(**chosen)
    return replace(RECOMMENDED, **chosen)


def open_run(folder: Path, lowest: float | None = None) -> Run:
    """The run, with a word on what is missing from it; refuses a `lowest` masked score below what was stored."""
    from objectseeker.runs.run import open_run

    run = open_run(folder)
    if not run.complete:
        warn(f"{folder} is unfinished: {run.finished} of {len(run.manifest.images)} images are used")
    for image in run.broken:
        warn(f"left out: {image.reason}")
    if run.manifest.excluded:
        warn(f"classes left out because the detector does not know them: {', '.join(run.manifest.excluded)}")
    if lowest is not None and lowest < run.manifest.mask_floor:
        raise ObjectSeekerError(
            f"the run keeps masked boxes from a score of {run.manifest.mask_floor} on, but these settings look from "
            f"{lowest} on: raise the scores, or observe with a lower --mask-floor"
        )
    return run


def note_masks(run: Run, patches: int) -> None:
    """Say so where a run's masks are not made for the threat."""
    if patches == 2 and run.manifest.masks == "halves":
        warn("the run has half masks only: two patches are certified where one of them removes both; use --masks pairs")


def rule_of(spec: str, given: dict[str, Any]) -> Rule:
    """The settings given; if no score of masked boxes is, those recommended for the detector."""
    from objectseeker import evaluation
    from objectseeker.detectors.embedded import loading as embedded

    chosen = {key: value for key, value in given.items() if value is not None}
    if chosen.keys() & {"mask_score", "low_score"}:
        return Rule(**chosen)
    if spec == "embedded" and "base_score" not in chosen:
        return replace(embedded.RECOMMENDED, **chosen)
    return replace(evaluation.RECOMMENDED.rule(chosen.get("base_score", 0.5)), **chosen)


def with_iou(rule: Rule, tau_iou: float | None) -> AnyRule:
    """The rule, or the IoU variant around it."""
    return rule if tau_iou is None else IouRule(ioa=rule, tau_iou=tau_iou)
