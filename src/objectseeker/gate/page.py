"""The files of a verdict: gate.json, junit.xml, gate.md, and gate.html with failing objects.

The page stands alone, in light and dark, on paper and on a phone. It runs no script.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.images import load_image
from objectseeker.gate.judge import FailureExample, GateResult, RequirementResult
from objectseeker.gate.policy import format_value
from objectseeker.gate.verdict_text import (
    JOINT_NOTE,
    MARKS,
    format_metric,
    format_reason,
    sample_size,
    to_junit,
    verdict_markdown,
)
from objectseeker.inference.drawing import (
    BASE,
    VULNERABLE,
    Layer,
    LegendEntry,
    annotate,
    captions,
    draw_detections,
    with_legend,
)
from objectseeker.report.page import to_jpeg
from objectseeker.text import escape_invisible

RenderedExamples = Mapping[FailureExample, bytes | str]  # a JPEG file, or why there is none

METHODS = {"exact": "exact interval (Clopper-Pearson)", "bootstrap": "bootstrap over images (BCa)"}


def _style() -> str:
    files = resources.files("objectseeker")
    return "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("report/web/palette.css", "gate/page.css")
    )


def write_reports(
    out: Path, gate: GateResult, images: Sequence[ObservedImage], label_map: LabelMap, rule: PruningRule
) -> None:
    """Write gate.json, junit.xml, gate.md and gate.html into `out`; `images` are those that were judged."""
    out.mkdir(parents=True, exist_ok=True)
    examples = render_examples(gate, images, label_map, rule)
    save_json(out / "gate.json", gate.to_dict())
    save_text(out / "junit.xml", to_junit(gate))
    save_text(out / "gate.md", verdict_markdown(gate))
    save_text(out / "gate.html", to_html(gate, examples))


def render_examples(
    gate: GateResult, images: Sequence[ObservedImage], label_map: LabelMap, rule: PruningRule
) -> dict[FailureExample, bytes | str]:
    """Draw every failure example: missed objects, uncertified objects and flagged images."""
    wanted: dict[str, list[FailureExample]] = {}
    for result in gate.results:
        for example in result.failure_examples:
            wanted.setdefault(example.image, []).append(example)
    rendered: dict[FailureExample, bytes | str] = {}
    for image in images if wanted else ():
        for example in wanted.pop(image.id, ()):
            rendered[example] = _render_example(image, example, label_map, rule)
        if not wanted:
            break
    return rendered


def _render_example(
    image: ObservedImage, example: FailureExample, label_map: LabelMap, rule: PruningRule
) -> bytes | str:
    try:
        pixels = load_image(image.path)
    except ObjectSeekerError as error:
        return str(error)
    if pixels.shape[1::-1] != (image.observation.width, image.observation.height):
        return f"{image.path} is not the image that was observed"
    base = image.observation.base.with_min_score(rule.base_threshold)
    boxes, names = rule.prune(image.observation), label_map.detector_names
    if example.box is None:
        annotated = draw_detections(pixels, base, names, recovered=boxes[len(base) :])
    else:
        missed = Layer(np.array([example.box]), [str(escape_invisible(example.class_name))], color=VULNERABLE)
        layers = [Layer(boxes.xyxy, captions(boxes, names), color=BASE, width=0.5), missed]
        legend = [LegendEntry("the object", VULNERABLE), LegendEntry("output without an attack", BASE)]
        annotated = with_legend(annotate(pixels, layers), legend)
    return to_jpeg(annotated)


def to_html(gate: GateResult, examples: RenderedExamples) -> str:
    """Return the page: the verdict, a section per requirement with its interval, and the inputs."""
    body = [
        f'<section class="{gate.verdict}"><h1>Release gate: <span class="mark">{MARKS[gate.verdict]}</span></h1>',
        f"<p>{_text(gate.summarize())}.</p>",
        *(f"<p>Refuted: {_text(certificate)}</p>" for certificate in gate.refuted),
        f'<p class="soft">A requirement passes if the worse end of its {100 * gate.policy.confidence:g} % interval is '
        "good enough, fails if even the better end is not, and is undecided in between. Intervals are over images."
        "</p></section>",
        *(_section(result, examples) for result in gate.results),
        _inputs(gate),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src '
        "'unsafe-inline'\">\n"
        f"<title>Release gate: {MARKS[gate.verdict]}</title>\n<style>\n{_style()}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def notebook_html(gate: GateResult) -> str:
    """Return the verdict as a table for a notebook."""
    rows = "".join(
        f"<tr><td>{MARKS[result.outcome]}</td><td>{_text(result.requirement.title)}</td>"
        f"<td>{_text(format_metric(result))}</td><td>{_text(format_reason(result))}</td></tr>"
        for result in gate.results
    )
    head = "<tr><th></th><th>requirement</th><th>value</th><th>reason</th></tr>"
    return f"<p><b>{MARKS[gate.verdict]}</b>: {_text(gate.summarize())}</p><table>{head}{rows}</table>"


def _section(result: RequirementResult, examples: RenderedExamples) -> str:
    requirement, size = result.requirement, sample_size(result)
    method = f"; {METHODS[result.interval.method]}" if size and result.interval.known else ""
    parts = [
        f'<section class="{result.outcome}">',
        f'<h2><span class="mark">{MARKS[result.outcome]}</span> {_text(requirement.name)}</h2>',
        f"<p>{_text(requirement.describe_with_limit())}</p>" if requirement.given_name else "",
        _interval_bar(result),
        f"<p><b>{_text(format_metric(result))}</b></p>" if result.interval.known else "",
        f"<p>{_text(format_reason(result))}</p>",
        f'<p class="soft">{_text(size + method)}</p>',
        _slices(result),
        f"<p>{JOINT_NOTE}</p>" if requirement.metric == "joint_certified_recall" else "",
        _examples(result, examples),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _interval_bar(result: RequirementResult) -> str:
    """Draw interval, value and limit on a line: 0 to 100 for percentages, else as much as shows them."""
    interval, limit, unit = result.interval, result.limit, result.requirement.unit
    if not interval.known or limit is None:
        return ""
    low, high = (0.0, 100.0) if unit == "%" else (min(interval.low, limit, 0.0), max(interval.high, limit, 0.0))
    span = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - low) / span:.2f}%"

    width = f"{100 * (interval.high - interval.low) / span:.2f}%"
    label = f"{format_metric(result)}, {result.requirement.describe_limit()}"
    return (
        f'<div class="bar" role="img" aria-label="{_text(label)}">'
        f'<span class="range" style="left:{at(interval.low)};width:{width}"></span>'
        f'<span class="limit" style="left:{at(limit)}"></span>'
        f'<span class="value" style="left:{at(interval.value)}"></span></div>'
        f'<p class="ends soft"><span>{_text(format_value(low, unit))}</span><span>dashed: limit '
        f"{_text(format_value(limit, unit))}</span><span>{_text(format_value(high, unit))}</span></p>"
    )


def _slices(result: RequirementResult) -> str:
    if not result.slices:
        return ""
    rows = "".join(
        f'<tr><td>{_text(str(part.slice))}</td><td class="{part.outcome}"><span class="mark">{MARKS[part.outcome]}'
        f"</span></td><td>{_text(format_metric(part))}</td><td>{_text(sample_size(part))}</td></tr>"
        for part in result.slices
    )
    head = "<tr><th>slice</th><th></th><th>value</th><th>sample</th></tr>"
    return f'<div class="scroll"><table>{head}{rows}</table></div>'


def _examples(result: RequirementResult, examples: RenderedExamples) -> str:
    if not result.failure_examples:
        return ""
    figures = "".join(_figure(example, examples.get(example, "")) for example in result.failure_examples)
    opened = "" if result.outcome == "pass" else " open"
    title = "Largest failing objects" if result.failure_examples[0].box else "Failing images"
    return f'<details{opened}><summary>{title}</summary><div class="examples">{figures}</div></details>'


def _figure(example: FailureExample, rendered: bytes | str) -> str:
    name = example.image if example.class_name is None else f"{example.class_name} in {example.image}"
    if isinstance(rendered, bytes):
        data = base64.b64encode(rendered).decode()
        content = f'<img alt="{_text(name)}" src="data:image/jpeg;base64,{data}">'
    else:
        content = f"<p>{_text(rendered)}</p>"
    return f"<figure>{content}<figcaption>{_text(name)}</figcaption></figure>"


def _inputs(gate: GateResult) -> str:
    defense, run, files = (gate.inputs.get(name) or {} for name in ("defense", "run", "files"))
    rows = {
        "defense": defense.get("sha256"),
        "detector": defense.get("detector"),
        "masks": defense.get("masks"),
        "certified: the output has": defense.get("certifies"),
        "run": run.get("fingerprint"),
        "dataset": run.get("dataset_fingerprint"),
        "images": run.get("images"),
        "images that chose the defense": run.get("tuned_images"),
        "policy": files.get("policy"),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{_text(str(value))}</td></tr>" for name, value in rows.items() if value)
    return f'<details><summary>Inputs</summary><div class="scroll"><table>{cells}</table></div></details>'


def _text(text: str) -> str:
    """Escape untrusted text for HTML."""
    return escape(str(escape_invisible(text)))
