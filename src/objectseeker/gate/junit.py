"""JUnit XML, in the form that Jenkins' junit-10.xsd describes and GitLab, GitHub actions and others read.

One test case for every requirement and one for the attack files. Nothing in it depends on when or where it was written.
"""

from __future__ import annotations

from xml.etree import ElementTree

from objectseeker.gate.verdict_text import behind, figure_of, in_short, why
from objectseeker.metrics.gate import Gate, Judgement
from objectseeker.text import escape_invisible

SUITE = "objectseeker.gate"


def junit_of(gate: Gate, *, allow_undecided: bool = False) -> str:
    """A failed or undecided requirement is a failure; where undecided ones are let through they are skipped.

    A refuted certificate is an error.
    """
    undecided = gate.count("undecided")
    counts = {
        "tests": len(gate.judgments) + 1,
        "failures": gate.count("fail") + (0 if allow_undecided else undecided),
        "errors": int(bool(gate.refuted)),
    }
    plain = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": SUITE, **plain})
    skipped = str(undecided if allow_undecided else 0)
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **plain, "skipped": skipped})
    for judgment in gate.judgments:
        _add(suite, judgment, allow_undecided)
    case = _case(suite, "certificates", "no certificate is refuted by an attack file")
    if gate.refuted:
        error = ElementTree.SubElement(case, "error", {"type": "refuted", "message": in_short(gate)})
        error.text = _legal("\n".join(gate.refuted))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, judgment: Judgement, allow_undecided: bool) -> None:
    asked = judgment.requirement
    case = _case(suite, asked.figure, asked.name)
    message = _legal(why(judgment))
    if judgment.outcome == "undecided" and allow_undecided:
        ElementTree.SubElement(case, "skipped", {"message": message})
    elif judgment.outcome != "pass":
        failure = ElementTree.SubElement(case, "failure", {"type": judgment.outcome, "message": message})
        failure.text = _legal(_details(judgment))
    ElementTree.SubElement(case, "system-out").text = _legal(_details(judgment))


def _details(judgment: Judgement) -> str:
    asked = judgment.requirement
    lines = [asked.in_full(), figure_of(judgment), behind(judgment), why(judgment)]
    lines += [f"{one.slice}: {one.outcome}, {figure_of(one)}" for one in judgment.slices]
    return "\n".join(line for line in lines if line)


def _case(suite: ElementTree.Element, figure: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", {"classname": f"{SUITE}.{figure}", "name": _legal(name)})


def _legal(text: str) -> str:
    """XML has no way to write control characters and halves of characters."""
    return "\n".join(str(escape_invisible(line)) for line in text.split("\n"))
