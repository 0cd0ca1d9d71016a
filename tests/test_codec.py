"""Documents: what is not exactly right is an error that names the document, the key, the value and the remedy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest

from objectseeker import Halves, Rule, codec
from objectseeker.core.recipes import Recipe
from objectseeker.errors import ObjectSeekerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    rule: Rule
    masks: Recipe = field(default_factory=Halves)
    count: int = 1
    flag: bool = True
    maybe: bool | None = None
    location: Literal["far", "over"] = "far"
    names: Mapping[str, tuple[str, ...]] | None = None
    size: int | tuple[int, int] | None = None
    rules: tuple[Rule, ...] = ()


RULE = '"rule": {"base_threshold": 0.2, "mask_threshold": 0.5}'


def read(text, **options):
    return codec.read_json(text, Document, "it.json", **options)


def test_documents_come_back_equal_and_equal_content_is_equal_bytes():
    document = Document(
        rule=Rule(base_threshold=0.1, mask_threshold=0.30000000000000004),
        names={"a": ("b", "c")},
        size=(3, 4),
        rules=(Rule(), Rule()),
    )
    written = codec.write_json(document)
    assert read(written) == document
    assert codec.write_json(read(written, fix="no")) == written
    assert read(codec.write_json(document, indent=2)) == document
    assert (
        codec.write_json({"x": np.float64(-0.0), "y": np.int64(3), "z": (True, None)})
        == '{"x":0.0,"y":3,"z":[true,null]}'
    )
    assert math.copysign(1, read('{"rule": {"base_threshold": -0.0, "mask_threshold": 0.5}}').rule.base_threshold) == 1
    with pytest.raises(ValueError, match="JSON compliant"):
        codec.write_json({"x": math.nan})
    with pytest.raises(TypeError, match="cannot hold set"):
        codec.write_json({"x": {1}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "it.json lacks the key rule: fix it"),
        ('{"rule": {"mask_threshold": true}}', "it.json: rule.mask_threshold must be a number: got True: fix it"),
        ('{"rule": {"mask_threshold": "0.5"}}', "it.json: rule.mask_threshold must be a number: got '0.5': fix it"),
        ('{"rule": {"mask_threshold": 7}}', "it.json: rule.mask_threshold must lie within [0, 1]: got 7.0"),
        ('{"rule": {"mask_threshold": NaN}}', "it.json has the number NaN: numbers must be finite"),
        ('{"rule": {"mask_threshold": 1e999}}', "it.json has the number 1e999: numbers must be finite"),
        ('{"rule": {"mask_treshold": 0.5}}', "it.json has an unknown key 'rule.mask_treshold': fix it"),
        ('{"rule": null}', "it.json: rule must be a group of settings: got None: fix it"),
        ("{" + RULE + ', "rule": {}}', "it.json has the key 'rule' twice: remove one"),
        ("{" + RULE + ', "more": 1}', "it.json has an unknown key 'more': fix it"),
        ("{" + RULE + ', "count": true}', "it.json: count must be a whole number: got True: fix it"),
        ("{" + RULE + ', "count": 1.0}', "it.json: count must be a whole number: got 1.0: fix it"),
        ("{" + RULE + ', "flag": 0}', "it.json: flag must be true or false: got 0: fix it"),
        ("{" + RULE + ', "flag": null}', "it.json: flag must be true or false: got None: fix it"),
        ("{" + RULE + ', "maybe": "false"}', "it.json: maybe must be true or false or null: got 'false': fix it"),
        ("{" + RULE + ', "location": "x"}', "it.json: location must be one of the documented values: got 'x': fix it"),
        ("{" + RULE + ', "masks": 3}', "it.json: masks must be a string: got 3: fix it"),
        (
            "{" + RULE + ', "masks": "halves:0_6"}',
            "it.json: masks: cannot read the masks 'halves:0_6': write halves:30",
        ),
        ("{" + RULE + ', "masks": "halves:٣"}', "it.json: masks: cannot read the masks 'halves:٣': write halves:30"),
        ("{" + RULE + ', "masks": "bands:1_0%"}', "it.json: masks: cannot read the masks 'bands:1_0%'"),
        ("{" + RULE + ', "masks": "bands:1%,spacing=٢"}', "it.json: masks: cannot read the masks"),
        ("{" + RULE + ', "masks": "rolling:0_8:halves:30"}', "it.json: masks: cannot read the masks"),
        ("{" + RULE + ', "names": {"a": ["b", 3]}}', "it.json: names[...][1] must be a string: got "),
        ("{" + RULE + ', "size": [1, 2, 3]}', "it.json: size must be a list of length 2: got [1, 2, 3]: fix it"),
        ("{" + RULE + ', "rules": [{}, {"q": 3}]}', "it.json has an unknown key 'rules[1].q': fix it"),
        (
            "{" + RULE + ', "rules": [{}, {"evidence_power": null}]}',
            "it.json: rules[1].evidence_power must be a number: got None: fix it",
        ),
        (
            '{"rule": {"evidence_power": 1' + 400 * "0" + "}}",
            "it.json has the number 10000",
        ),
        ("[]", "it.json must be a group of settings: got []: fix it"),
        ("[", "it.json is not valid JSON (Expecting value: line 1 column 2 (char 1)): fix it"),
        ("", "it.json is not valid JSON"),
        (100_000 * "[", "it.json is not valid JSON (nested too deeply): fix it"),
        (5000 * "1", "it.json is not valid JSON"),
        ('{"kind": "\\ud800"}', "it.json is not valid JSON ('utf-8' codec can't encode"),
        ('{"\\udfff": 1}', "it.json is not valid JSON ('utf-8' codec can't encode"),
        (b"\xff", "it.json is not valid JSON ('utf-8' codec can't decode"),
    ],
)
def test_what_is_not_exactly_right_is_named(text, message):
    with pytest.raises(ObjectSeekerError) as error:
        read(text, fix="fix it")
    assert str(error.value).startswith(message)


def test_the_format_is_the_first_thing_that_must_be_right():
    assert codec.read_json('{"format": 2, "evidence_power": 3}', Rule, "it.json", format=2) == Rule(evidence_power=3)
    for version, shown in {"1": "1", "true": "True", '"2"': "'2'", "null": "None", "2.5": "2.5"}.items():
        with pytest.raises(ObjectSeekerError, match=rf"it\.json has format {shown}, this version .* reads format 2: "):
            codec.read_json(f'{{"format": {version}, "strange": 3}}', Rule, "it.json", format=2)
    with pytest.raises(ObjectSeekerError, match="unknown key 'format'"):
        codec.read_json('{"format": 2}', Rule, "it.json")


def test_toml_is_read_by_the_same_rules():
    assert codec.parse_toml("rule.evidence_power = 2\ncount = 3", "it.toml") == {
        "rule": {"evidence_power": 2},
        "count": 3,
    }
    for text, message in {
        "rule = 3": "it.toml: rule must be a group of settings: got 3",
        "rule.evidence_power = true": "it.toml: rule.evidence_power must be a number: got True",
        "rule.evidence_power = nan": "it.toml has the number nan: numbers must be finite",
        "rule.evidence_power = -inf": "it.toml has the number -inf: numbers must be finite",
        "rule = {}\ncount = 1\ncount = 2": "it.toml is not valid TOML",
    }.items():
        with pytest.raises(ObjectSeekerError) as error:
            codec.from_plain(codec.parse_toml(text, "it.toml"), Document, "it.toml")
        assert str(error.value).startswith(message)
