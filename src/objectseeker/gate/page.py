"""The files of a verdict: gate.json, junit.xml, gate.md, and gate.html with failing objects.

Names of images, classes and requirements are untrusted text: each format escapes them. The page stands alone, in light
and dark, on paper and on a phone. It runs no script.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.rules import PruningRule
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.atomic import save_json, save_text
from objectseeker.files.images import load_image
from objectseeker.gate.judge import FailureExample, GateResult, RequirementResult
from objectseeker.gate.policy import format_value
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
from objectseeker.text import escape_invisible, to_markdown
from objectseeker.text import to_html as rows_to_html

RenderedExamples = Mapping[FailureExample, bytes | str]  # a JPEG file, or why there is none

MARKS = {"pass": "pass", "fail": "FAIL", "undecided": "undecided", "refuted": "REFUTED"}
MARKDOWN_SPECIAL = "\\`*_{}[]<>#|~&"
SUITE = "objectseeker.gate"
JOINT_NOTE = "Joint certified recall counts objects: one output box may cover several of them."
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
    table = rows_to_html([_row(result) for result in gate.results])
    return f"<p><b>{MARKS[gate.verdict]}</b>: {_text(gate.summarize())}</p>{table}"


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


def format_metric(result: RequirementResult) -> str:
    """Return the value with its interval."""
    interval, unit = result.interval, result.requirement.unit
    if not interval.known:
        return "-"
    sign = "+" if result.requirement.against_baseline and interval.value > 0 else ""
    return f"{sign}{format_value(interval.value, unit)} ({interval.low:.2f} to {interval.high:.2f})"


def sample_size(result: RequirementResult) -> str:
    """Return the numbers of objects and images that the value was measured on."""
    if not result.images:
        return ""
    words = f"{result.objects:,} objects in {result.images:,} images"
    return words + (f", {result.vacuous:,} have no such position" if result.vacuous else "")


def format_reason(result: RequirementResult) -> str:
    """Return the reason, with the slice it is about."""
    if result.slice is None:
        return result.reason
    worst = f"worst of {len(result.slices)} slices, " if result.slices else ""
    return f"{worst}{result.slice}: {result.reason}"


def verdict_markdown(gate: GateResult) -> str:
    """Return a comment for a pull request: the verdict, a row per requirement, and the slices."""
    defense, run = gate.inputs.get("defense", {}), gate.inputs.get("run", {})
    parts = [
        f"## Release gate: {MARKS[gate.verdict]}",
        f"{gate.summarize()}. Intervals at {100 * gate.policy.confidence:g} %, over images.",
    ]
    if run.get("tuned_images"):
        parts.append(f"{run['tuned_images']} of the {run['images']} images chose the defense that is judged on them.")
    if gate.refuted:
        parts.append("\n".join(f"- refuted: {_escape_markdown(certificate)}" for certificate in gate.refuted))
    parts.append(_markdown_table([_row(result) for result in gate.results]))
    for result in gate.results:
        if result.slices:
            rows = [{"slice": str(part.slice), **_row(part), "reason": part.reason} for part in result.slices]
            for row in rows:
                del row["requirement"]
            parts.append(f"### {_escape_markdown(result.requirement.name)}\n\n{_markdown_table(rows)}")
    if any(result.requirement.metric == "joint_certified_recall" for result in gate.results):
        parts.append(JOINT_NOTE)
    if defense and run:
        parts.append(f"Certified: the output has {defense['certifies']}.")
        detector = str(escape_invisible(str(defense["detector"]))).replace("`", "'")
        parts.append(
            f"Defense `{defense['sha256'][:16]}`, detector `{detector}`, run "
            f"`{run['fingerprint'][:16]}`, {run['images']:,} images."
        )
    return "\n\n".join(parts) + "\n"


def _row(result: RequirementResult) -> dict[str, str]:
    return {
        "": MARKS[result.outcome],
        "requirement": result.requirement.title,
        "value": format_metric(result),
        "sample": sample_size(result),
        "reason": format_reason(result),
    }


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    escaped = [{name: _escape_markdown(text) for name, text in row.items()} for row in rows]
    return to_markdown([row | {"": f"**{row['']}**"} for row in escaped])


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in MARKDOWN_SPECIAL else letter for letter in str(escape_invisible(text)))


def to_junit(gate: GateResult) -> str:
    """Return JUnit XML in the form of Jenkins' junit-10.xsd, which GitLab, GitHub actions and others read.

    It has one test case per requirement and one for the attack files. A failed or undecided requirement is a failure
    (an undecided one is skipped if the gate allows it), a refuted certificate is an error. Nothing depends on when or
    where it was written.
    """
    undecided = gate.count("undecided")
    counts = {
        "tests": len(gate.results) + 1,
        "failures": gate.count("fail") + (0 if gate.allow_undecided else undecided),
        "errors": int(bool(gate.refuted)),
    }
    attributes = {"name": SUITE, **{name: str(count) for name, count in counts.items()}}
    root = ElementTree.Element("testsuites", attributes)
    skipped = str(undecided if gate.allow_undecided else 0)
    suite = ElementTree.SubElement(root, "testsuite", {**attributes, "skipped": skipped})
    for result in gate.results:
        case = _junit_case(suite, result.requirement.metric, result.requirement.name)
        reason = format_reason(result)
        lines = [result.requirement.describe_with_limit(), format_metric(result), sample_size(result), reason]
        lines += [f"{part.slice}: {part.outcome}, {format_metric(part)}" for part in result.slices]
        details, message = _escape_xml("\n".join(line for line in lines if line)), _escape_xml(reason)
        if result.outcome == "undecided" and gate.allow_undecided:
            ElementTree.SubElement(case, "skipped", {"message": message})
        elif result.outcome != "pass":
            failure = ElementTree.SubElement(case, "failure", {"type": result.outcome, "message": message})
            failure.text = details
        ElementTree.SubElement(case, "system-out").text = details
    case = _junit_case(suite, "certificates", "no certificate is refuted by an attack file")
    if gate.refuted:
        error = ElementTree.SubElement(case, "error", {"type": "refuted", "message": gate.summarize()})
        error.text = _escape_xml("\n".join(gate.refuted))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_case(suite: ElementTree.Element, metric: str, name: str) -> ElementTree.Element:
    attributes = {"classname": f"{SUITE}.{metric}", "name": _escape_xml(name)}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _escape_xml(text: str) -> str:
    """Spell out what XML cannot hold: control characters and lone surrogates."""
    return "\n".join(str(escape_invisible(line)) for line in text.split("\n"))
