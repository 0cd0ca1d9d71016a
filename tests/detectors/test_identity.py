"""What a fingerprint says of the processor, and how two fingerprints are told apart."""

import pytest

pytest.importorskip("onnx")
from detector_graphs import build

from objectseeker import Defense, ObjectSeekerError, Rule
from objectseeker.detectors import load_detector
from objectseeker.detectors.network import fingerprint

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
flags\t\t: fpu sse2 avx f16c fma avx2 avx512f avx512bw amx_bf16

processor\t: 1
vendor_id\t: GenuineIntel
flags\t\t: fpu
"""
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp sve i8mm bf16\nCPU implementer\t: 0x41\n"


@pytest.fixture
def on_another_cpu(tmp_path, monkeypatch):
    """Makes this machine one with another processor."""

    def change(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(fingerprint, "CPU_INFO", tmp_path / "cpuinfo")
        fingerprint.instruction_set.cache_clear()

    yield change
    monkeypatch.undo()
    fingerprint.instruction_set.cache_clear()


@pytest.mark.parametrize(
    ("info", "machine", "said"),
    [
        (INTEL, "x86_64", "x86-64 intel avx fma avx2 avx512f avx512bw amx_bf16"),
        (GRAVITON, "aarch64", "arm64 0x41 asimd asimdhp asimddp i8mm bf16 sve"),
        ("", "riscv64", "riscv64"),
    ],
)
def test_a_processor_is_named_by_its_instruction_set(info, machine, said, on_another_cpu, monkeypatch):
    monkeypatch.setattr(fingerprint.platform, "machine", lambda: machine)
    on_another_cpu(info)
    assert fingerprint.instruction_set() == said


def test_a_processor_without_proc_is_named_by_its_brand(tmp_path, monkeypatch, on_another_cpu):
    on_another_cpu("")
    monkeypatch.setattr(fingerprint, "CPU_INFO", tmp_path / "absent")
    monkeypatch.setattr(fingerprint.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(fingerprint.platform, "processor", lambda: "Fast (R)")
    fingerprint.instruction_set.cache_clear()
    said = fingerprint.instruction_set()
    assert said.startswith("arm64 ")
    assert not set("()") & set(said)


def test_detectors_on_different_processors_are_different_and_one_may_vouch_for_them(on_another_cpu, tmp_path):
    spec = f"onnx:{build('yolov8', tmp_path / 'own.onnx', (5, 5, 20, 20), (0, 0))}"
    defense = Defense(detector=spec, rule=Rule())
    here = load_detector(spec).fingerprint
    on_another_cpu(INTEL)
    there = load_detector(spec).fingerprint
    assert here != there
    bound = defense.with_fingerprint(here)
    with pytest.raises(ObjectSeekerError, match=r"the CPU was .* and is .*avx512bw amx_bf16 here: .*--trust-detector"):
        bound.build()
    assert bound.build(trust_detector=True).detector.fingerprint == there


def test_nothing_but_the_processor_is_taken_on_trust(tmp_path):
    spec = f"onnx:{build('yolov8', tmp_path / 'own.onnx', (5, 5, 20, 20), (0, 0))}"
    bound = Defense(detector=spec, rule=Rule()).with_fingerprint(
        load_detector(spec).fingerprint.replace("batch=1", "batch=2")
    )
    with pytest.raises(ObjectSeekerError, match=r"about the detector own\.onnx .*, but onnx:.* is own\.onnx"):
        bound.build(trust_detector=True)


def test_what_is_different_is_named():
    old, new = "a.onnx (batch=1 cpu) sha256:1", "a.onnx (batch=1 cpu x86-64 amd avx2) sha256:1"
    assert fingerprint.differs_only_in_cpu(old, new)
    assert fingerprint.describe_difference(old, new) == "the CPU was not recorded and is x86-64 amd avx2 here"
    gpu = "a.onnx (batch=1 cuda NVIDIA H200) sha256:1"
    for other in (gpu, new.replace("batch=1", "batch=2"), new.replace(":1", ":2")):
        assert not fingerprint.differs_only_in_cpu(new, other)
        assert fingerprint.describe_difference(new, other) == f"it was {new} and is {other} here"
    assert not fingerprint.differs_only_in_cpu(gpu, gpu)
