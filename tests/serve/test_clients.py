"""Third-party clients get bit-identical boxes to the library's."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from command import run, write_dataset
from serving import make_image, serving

from objectseeker import Defense, Halves, Patch
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.demo.samples import samples
from objectseeker.files.images import load_image
from objectseeker.metrics import ThreatModel


@pytest.fixture(scope="module")
def builtin(tmp_path_factory):
    """The built-in detector with its own rule and a few masks, from a file as a user has it."""
    file = tmp_path_factory.mktemp("defense") / "defense.json"
    Defense.for_detector("builtin", masks=Halves(1)).save(file)
    defense = Defense.load(file)
    seeker = defense.build()
    with serving(defense=defense, seeker=seeker) as running:
        yield running


def test_tritonclient_with_binary_tensors(builtin):
    triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
    client = triton.InferenceServerClient(f"127.0.0.1:{builtin.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("objectseeker")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    metadata = client.get_model_metadata("objectseeker")
    settings = metadata["parameters"]["defense"]
    assert metadata["versions"] == [settings["sha256"]] == [builtin.model.defense.sha256]
    assert Defense.from_dict(settings) == builtin.model.defense

    image = load_image(samples()[0].path)
    (expected,) = builtin.seeker([image])
    assert len(expected)
    given = triton.InferInput("image", image.shape, "UINT8")
    given.set_data_from_numpy(image)
    answer = client.infer("objectseeker", [given], request_id="seven")
    assert answer.get_response()["id"] == "seven"
    assert answer.get_response()["parameters"]["defense_sha256"] == settings["sha256"]
    for name, array in (("boxes", expected.xyxy), ("scores", expected.score), ("labels", expected.label)):
        assert answer.as_numpy(name).dtype == array.dtype
        assert answer.as_numpy(name).tobytes() == array.tobytes()
    with pytest.raises(triton.InferenceServerException, match="unknown version"):
        client.infer("objectseeker", [given], model_version="1")


def test_tritonclient_asks_for_certificates_of_one_defense():
    triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
    names = ("certified", "vacuous_far", "largest_square", "recovered", "boxes", "certified_scores")
    names += ("certified_not_fabricated", "largest_square_not_fabricated")
    with serving(threat=ThreatModel(area=0.005)) as running:
        client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
        version = running.model.defense.sha256  # whose certificates the client knows
        image = make_image()
        given = triton.InferInput("image", image.shape, "UINT8")
        given.set_data_from_numpy(image)
        asked = [triton.InferRequestedOutput(name) for name in names]
        answer = client.infer("objectseeker", [given], model_version=version, outputs=asked)
        assert [output["name"] for output in answer.get_response()["outputs"]] == list(names)
        defended = running.seeker.defend(image)
        patches = [Patch(0.005, 1.0, where) for where in PATCH_LOCATIONS]
        own = running.seeker.certify(defended.observation, defended.detections, patches)
        assert own.certified.any()
        assert not own.certified.all()
        assert np.array_equal(answer.as_numpy("certified"), own.certified.T)
        assert np.array_equal(answer.as_numpy("vacuous_far"), own.vacuous[0])
        assert np.array_equal(answer.as_numpy("largest_square"), own.largest_square)
        made = running.seeker.certify_not_fabricated(defended.observation, defended.detections, patches)
        assert np.array_equal(answer.as_numpy("certified_not_fabricated"), made.certified.T)
        assert np.array_equal(answer.as_numpy("largest_square_not_fabricated"), made.largest_square)
        scores = running.seeker.certified_scores(defended.observation, defended.detections, patches[-1])
        assert answer.as_numpy("certified_scores").tobytes() == scores.tobytes()
        assert answer.as_numpy("recovered").sum() == len(defended.recovered)
        assert answer.get_response()["parameters"]["alert"] == defended.alert


def test_tensors_in_json_and_no_boxes():
    triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
    with serving() as running:
        client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
        outputs = [triton.InferRequestedOutput(name, binary_data=False) for name in ("boxes", "labels", "certified")]
        for image in (make_image(), np.zeros((5, 7, 3), np.uint8)):
            given = triton.InferInput("image", image.shape, "UINT8")
            given.set_data_from_numpy(image, binary_data=False)
            (expected,) = running.seeker([image])
            answer = client.infer("objectseeker", [given], outputs=outputs)
            assert np.array_equal(answer.as_numpy("boxes"), expected.xyxy)
            assert answer.as_numpy("certified").shape == (len(expected), 4)
            given.set_data_from_numpy(image)
            assert client.infer("objectseeker", [given]).as_numpy("scores").tolist() == expected.score.tolist()


def test_nested_data_is_the_same_as_flat():
    image = make_image(8, 6)
    with serving() as running:
        answers = []
        for data in (image.tolist(), image.ravel().tolist()):
            tensor = {"name": "image", "datatype": "UINT8", "shape": list(image.shape), "data": data}
            status, answer = running.post("/v2/models/objectseeker/infer", json.dumps({"inputs": [tensor]}))
            assert status == 200
            answers.append(answer["outputs"])
        assert answers[0] == answers[1]
        assert answers[0][0]["data"] == running.seeker([image])[0].xyxy.ravel().tolist()


@pytest.mark.parametrize("certify", [False, True])
def test_curl_gets_what_detect_writes(tmp_path, monkeypatch, certify):
    write_dataset(tmp_path, [(30, 20, 30, 20)])
    arguments = [
        "detect",
        "images",
        "-d",
        "python:mine:detect",
        "--set",
        "masks=halves:3",
        "--out",
        "o",
        "--no-annotate",
    ]
    run(tmp_path, *arguments, *(["--certify", "--patch-area", "2%"] if certify else []))
    written = json.loads((tmp_path / "o" / "detections.json").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    monkeypatch.chdir(tmp_path)
    defense = Defense.load(tmp_path / "o" / "defense.json")
    with serving(defense=defense, seeker=defense.build(), threat=ThreatModel(area=0.02)) as running:
        path = f"/detect{'?certify=1' if certify else ''}"
        if shutil.which("curl"):
            command = ["curl", "-sf", "--data-binary", "@images/0.png", f"http://127.0.0.1:{running.port}{path}"]
            content = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
        else:
            content = running.ask("POST", path, (tmp_path / "images" / "0.png").read_bytes())[2]
        answer = json.loads(content)
        assert running.ask("POST", "/detect?certify=yes", b"")[0] == 400
    assert [row | {"image": "0.png"} for row in answer["detections"]] == written
    assert list(answer["detections"][0]) == list(written[0])
    (flags,) = json.loads((tmp_path / "o" / "alerts.json").read_text())
    assert (answer["alert"], answer["recovered_boxes"]) == (flags["alert"], flags["recovered_boxes"])
    assert ("certificates" in answer) == certify
    if certify:
        assert answer["certificates"] == json.loads((tmp_path / "o" / "certificates.json").read_text())
        assert "already attacked" in answer["certificates"]["about"]
