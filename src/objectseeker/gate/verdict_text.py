"""A verdict as text: for a pull request (Markdown) and for build servers (JUnit XML).

Names of images, classes and requirements are untrusted text: each format escapes them.
"""

from __future__ import annotations

from xml.etree import ElementTree

from objectseeker.gate.judge import GateResult, RequirementResult
from objectseeker.gate.policy import format_value
from objectseeker.text import escape_invisible, to_markdown

MARKS = {"pass": "pass", "fail": "FAIL", "undecided": "undecided", "refuted": "REFUTED"}
MARKDOWN_SPECIAL = "\\`*_{}[]<>#|~&"
SUITE = "objectseeker.gate"
JOINT_NOTE = "Joint certified recall counts objects: one output box may cover several of them."


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
    parts.append(to_markdown([_markdown_row(result) for result in gate.results]))
    for result in gate.results:
        if result.slices:
            rows = [
                {"slice": _escape_markdown(str(part.slice))} | _markdown_row(part, named=False)
                for part in result.slices
            ]
            parts.append(f"### {_escape_markdown(result.requirement.name)}\n\n{to_markdown(rows)}")
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


def _markdown_row(result: RequirementResult, *, named: bool = True) -> dict[str, str]:
    first = {"": f"**{MARKS[result.outcome]}**"}
    first |= {"requirement": _escape_markdown(result.requirement.title)} if named else {}
    reason = format_reason(result) if named else result.reason
    return first | {
        "value": _escape_markdown(format_metric(result)),
        "sample": sample_size(result),
        "reason": _escape_markdown(reason),
    }


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
