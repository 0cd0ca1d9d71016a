"""What a gate leaves behind: JUnit that build servers read, Markdown and a page that interpret no one's names."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import evaluation_cases
import numpy as np
import PIL.Image
import pytest

from objectseeker import Rule
from objectseeker.core.label_map import LabelMap
from objectseeker.gate.judge import FailureExample, GateResult, RequirementResult
from objectseeker.gate.page import notebook_html, render_examples, to_html, to_junit, verdict_markdown
from objectseeker.gate.policy import parse_policy
from objectseeker.metrics.confidence_intervals import ConfidenceInterval

EVIL = "a|b <script>alert(1)</script>\x1b[31m\u202e `x`\n# top"
ABOUT = {
    "defense": {"sha256": "d" * 64, "detector": "toy `1`", "masks": "halves:6", "certifies": "a box"},
    "run": {"fingerprint": "e" * 64, "images": 40, "dataset_fingerprint": "f" * 64},
    "files": {"policy": "0" * 64},
}


def gate(*outcomes, name=None, refuted=()):
    """A gate with requirements that came out so."""
    text = "\n".join(
        ["format = 1"]
        + [
            f'[[require]]\nmetric = "certified_recall"\nlocation = "far"\nat_least = "{10 + number} %"'
            + ("" if name is None else f"\nname = {json.dumps(f'{number}{name}')}")
            for number in range(len(outcomes))
        ]
    )
    policy = parse_policy(text)
    results = tuple(
        RequirementResult(
            requirement=asked,
            outcome=outcome,
            reason="because",
            interval=ConfidenceInterval(40.0, 30.5, 50.0, "bootstrap"),
            limit=asked.value,
            images=40,
            objects=90,
            failure_examples=(FailureExample("1.jpg", 0, name or "cat", (1.0, 2.0, 3.0, 4.0)),),
        )
        for asked, outcome in zip(policy.requirements, outcomes, strict=True)
    )
    return GateResult(policy=policy, results=results, refuted=refuted, inputs=ABOUT)


# What junit-10.xsd allows: attributes (those that must be there first), and elements below.
SCHEMA = {
    "testsuites": ((), {"name", "time", "tests", "failures", "errors", "disabled"}, {"testsuite"}),
    "testsuite": (
        ("name", "tests", "failures", "errors"),
        {"time", "disabled", "skipped", "skips", "timestamp", "hostname", "id", "package", "file", "version"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        ("name", "classname"),
        {"time", "group", "status"},
        {"skipped", "error", "failure", "system-out", "system-err", "rerunFailure"},
    ),
    "failure": ((), {"message", "type"}, set()),
    "error": ((), {"message", "type"}, set()),
    "skipped": ((), {"message", "type"}, set()),
    "system-out": ((), set(), set()),
}


def check_against_schema(element):
    needed, allowed, below = SCHEMA[element.tag]
    assert set(needed) <= set(element.attrib) <= {*needed, *allowed}
    assert {child.tag for child in element} <= below
    for child in element:
        check_against_schema(child)


@pytest.mark.parametrize("allow", [False, True])
def test_junit_has_the_shape_that_build_servers_read(allow):
    made = gate("pass", "fail", "undecided", name=EVIL, refuted=("attack-1.json: cat 0 of 3",))
    root = ElementTree.fromstring(to_junit(replace(made, allow_undecided=allow)).encode())
    check_against_schema(root)
    (suite,) = root
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 4, "failures": 1 if allow else 2, "errors": 1, "skipped": int(allow)}
    tags = [{child.tag for child in case} - {"system-out"} for case in suite]
    assert tags == [set(), {"failure"}, {"skipped" if allow else "failure"}, {"error"}]
    assert "\x1b" not in to_junit(made)


def test_junit_is_read_by_a_real_parser():
    parser = pytest.importorskip("junitparser")
    (suite,) = parser.JUnitXml.fromstring(
        to_junit(replace(gate("pass", "fail", "undecided"), allow_undecided=True)).encode()
    )
    results = [[type(one) for one in case.result] for case in suite]
    assert results == [[], [parser.Failure], [parser.Skipped], []]
    assert suite.tests == 4
    assert next(iter(suite)).name.startswith("certified recall against a patch of 1 % far: at least 10 %")
    assert [one.message for case in suite for one in case.result] == ["because", "because"]


def test_markdown_is_a_table_whatever_things_are_called():
    text = verdict_markdown(gate("fail", name=EVIL))
    assert text.startswith("## Release gate: FAIL\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in rows)
    assert "<script>" not in text
    assert "40 % (30.50 to 50.00)" in text.replace("\\", "")


def test_the_page_stands_alone_and_runs_nothing():
    made = gate("pass", "fail", name=EVIL, refuted=(EVIL,))
    page = to_html(made, {made.results[0].failure_examples[0]: b"\xff\xd8image"})
    assert "<script" not in page
    assert "http-equiv" in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert "prefers-color-scheme" in page or "light-dark(" in page
    assert page.count('src="data:image/jpeg;base64,') == 2
    for tag in ("section", "figure", "details", "div", "table", "p", "span"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


def test_the_verdict_in_short_in_a_notebook_and_as_an_exit_status():
    html = gate("fail", name=EVIL)._repr_html_()
    assert html == notebook_html(gate("fail", name=EVIL))
    assert "FAIL" in html
    assert "<script" not in html
    assert [gate(*o).exit_status for o in (["pass"], ["fail"], ["pass", "undecided"])] == [0, 1, 1]
    assert gate("pass", refuted=("x",)).exit_status == 3
    allowed = replace(gate("undecided"), allow_undecided=True)
    assert allowed.exit_status == 0
    assert replace(gate("fail", "undecided"), allow_undecided=True).exit_status == 1
    assert gate("pass", "fail", "undecided").summarize() == "1 of 3 requirements pass, 1 fail, 1 undecided"
    assert "refuted" in gate("pass", refuted=("x",)).summarize()


def test_images_show_objects_and_flagged_images(tmp_path):
    PIL.Image.fromarray(np.full((100, 100, 3), 90, np.uint8)).save(tmp_path / "a.png")
    box = (40, 40, 60, 60)
    one = evaluation_cases.image([(*box, 0.9, 0)], [(*box, 0)], [[(5, 5, 25, 25, 0.9, 1)]] * 4)
    there = replace(one, id="there", path=tmp_path / "a.png")
    gone = replace(one, id="gone", path=tmp_path / "b.png")
    made = gate("fail")
    failure_examples = (
        FailureExample("there", 0, "cat", box),
        FailureExample("there", None, None, None),
        FailureExample("gone", 0, "cat", box),
    )
    made = replace(made, results=(replace(made.results[0], failure_examples=failure_examples),))
    rendered = render_examples(made, [there, gone], LabelMap.from_names(("cat", "dog")), Rule(base_threshold=0.3))
    assert [type(rendered[instance]) for instance in failure_examples] == [bytes, bytes, str]
    assert rendered[failure_examples[0]] != rendered[failure_examples[1]]
    assert "b.png" in rendered[failure_examples[2]]
