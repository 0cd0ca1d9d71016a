"""observe and open_run in Python: specs, callables, defenses and arrays; and what a run says of itself."""

import json
from dataclasses import replace

import numpy as np
import pytest
from observe_job import LINES, MASKS, Spots, content_of, make_dataset

import objectseeker
from objectseeker import Defense, Halves, ObjectSeekerError, Rule
from objectseeker.runs.engines import ClusterRequest
from objectseeker.runs.manifest import ObservationSettings

SPEC = "python:ray_detectors:spotting"


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "images", 3)


def test_a_spec_a_defense_and_a_recipe_as_text_make_the_same_run(dataset, tmp_path):
    defense = Defense.for_detector(SPEC, masks=MASKS)
    run = objectseeker.observe(dataset, defense, out=tmp_path / "defense")
    objectseeker.observe(dataset, SPEC, out=tmp_path / "spec", masks=f"halves:{LINES}")
    assert content_of(tmp_path / "defense") == content_of(tmp_path / "spec")
    assert isinstance(run, objectseeker.Run)
    assert objectseeker.open_run(tmp_path / "spec").fingerprint == run.fingerprint
    bound = run.defense()
    assert objectseeker.observe(dataset, bound, out=tmp_path / "bound").fingerprint == run.fingerprint


def test_a_defense_of_another_detector_is_rejected_before_anything_is_observed(dataset, tmp_path):
    other = replace(Defense.for_detector(SPEC, masks=MASKS), fingerprint="another sha256:00")
    with pytest.raises(ObjectSeekerError, match="this defense is about the detector another sha256:00, but"):
        objectseeker.observe(dataset, other, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_defense_or_a_loaded_detector_decides_cannot_be_passed_again(dataset, tmp_path):
    with pytest.raises(ObjectSeekerError, match="the defense has its own masks, fill: omit them"):
        objectseeker.observe(dataset, Defense.for_detector(SPEC), out=tmp_path / "run", masks=Halves(2), fill=0)
    for option in ({"device": "cpu"}, {"cluster": ClusterRequest()}):
        with pytest.raises(ObjectSeekerError, match="device and cluster need a SPEC or a Defense"):
            objectseeker.observe(dataset, Spots(), out=tmp_path / "run", **option)
    with pytest.raises(ObjectSeekerError, match="a detector must be a SPEC, a callable or a Defense"):
        objectseeker.observe(dataset, 3, out=tmp_path / "run")


def test_arrays_are_stored_and_can_be_resumed(tmp_path):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (20, 30 + number, 3), dtype=np.uint8) for number in range(3)]
    run = objectseeker.observe(images, Spots(), out=tmp_path / "run", masks=MASKS)
    before = content_of(tmp_path / "run")
    assert [image.observation.width for image in run.images()] == [30, 31, 32]
    for image, entry in zip(images, run.manifest.images, strict=True):
        assert np.array_equal(entry.load(), image)
    assert objectseeker.observe(iter(images), Spots(), out=tmp_path / "run", masks=MASKS).complete
    assert content_of(tmp_path / "run") == before
    with pytest.raises(
        ObjectSeekerError, match="image 0 must be an RGB array of uint8, height x width x 3: got ndarray"
    ):
        objectseeker.observe([np.zeros((3, 3))], Spots(), out=tmp_path / "other")


def test_a_run_says_what_it_is(dataset, tmp_path):
    run = objectseeker.observe(dataset, Spots(), out=tmp_path / "<run>", masks=MASKS)
    summary = json.loads(json.dumps(run.to_dict()))
    assert summary["images"] == 3
    assert summary["complete"] is True
    assert summary["unreadable"] == {}
    assert summary["observation_settings"]["masks"] == str(MASKS)
    html = run._repr_html_()
    assert "&lt;run&gt;" in html
    assert "3 of 3, 0 unreadable" in html


def test_scores_that_are_not_stored_are_named(dataset, tmp_path):
    run = objectseeker.observe(dataset, Spots(), out=tmp_path / "run", masks=MASKS, base_floor=0.2, mask_floor=0.3)
    run.require_scores(lowest_base=0.2, lowest_masked=0.3)
    run.require_scores()
    with pytest.raises(ObjectSeekerError, match=r"base boxes .* 0\.1 .* below 0\.2: .*; masked boxes .* 0\.2 .* 0\.3:"):
        run.require_scores(lowest_base=0.1, lowest_masked=0.2)
    assert ObservationSettings().missing_scores(lowest_base=0.01, lowest_masked=0.1) == []
    with pytest.raises(ObjectSeekerError, match=r"the run stores none below 0\.2"):
        run.bind_defense(Defense(detector=SPEC, rule=Rule(base_threshold=0.1), masks=MASKS))
