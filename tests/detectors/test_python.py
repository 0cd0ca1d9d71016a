"""python: detectors: what their fingerprint covers, and what they say of themselves that cannot be used."""

import sys
from pathlib import Path

import numpy as np
import pytest
from observe_job import make_dataset, run_here

from objectseeker.detectors import load_detector
from objectseeker.detectors.network.fingerprint import instruction_set
from objectseeker.errors import ObjectSeekerError

WEIGHED = """
import numpy as np
from objectseeker import Detections

names = ("thing",)
weights = None

def eager(images):
    return [Detections([[1, 1, 5, 5]], [float(EAGER[0])], [0]) for _ in images]

def lazy(images):
    global weights
    if weights is None:
        weights = np.load("lazy.npy")
    return [Detections([[1, 1, 5, 5]], [float(weights[0])], [0]) for _ in images]

EAGER = np.load("eager" + ".npy")
"""

PLAIN = """
from objectseeker import Detections

def detect(images):
    return [Detections.empty() for _ in images]

def vouched(images):
    return detect(images)

def fails(images):
    raise RuntimeError("too small")

vouched.fingerprint = "release 7"
fails.names = {0: "person", 2: "car"}
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes modules into the current folder, and loads detectors of them as a new process would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within the second that a cache goes by
    before = set(sys.modules)

    def forget():
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    class Modules:
        def write(self, **sources: str) -> None:
            for name, source in sources.items():
                Path(f"{name}.py").write_text(source)

        def load(self, target: str, **options):
            forget()
            return load_detector(f"python:{target}", **options)

    yield Modules()
    forget()


def weigh(file: str, score: float) -> None:
    np.save(file, np.array([score]))


@pytest.mark.parametrize(("function", "file"), [("eager", "eager.npy"), ("lazy", "lazy.npy")])
def test_weights_that_are_read_are_part_of_the_identity(modules, function, file):
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(weighed=WEIGHED)
    before = modules.load(f"weighed:{function}")
    assert before.unverified_reason is None
    assert before.fingerprint == modules.load(f"weighed:{function}").fingerprint
    assert before.fingerprint.startswith(f"weighed:{function} (eager.npy, lazy.npy, cpu {instruction_set()}) sha256:")
    weigh(file, 0.75)
    assert modules.load(f"weighed:{function}").fingerprint != before.fingerprint


def test_a_run_does_not_go_on_with_other_weights(modules, tmp_path):
    """Some images are done, the weights change, and the rest is requested: what this was written for."""
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(weighed=WEIGHED)
    spec = make_dataset(tmp_path / "images", 3, names=("thing",))
    run_here(spec, tmp_path / "run", modules.load("weighed:lazy"), limit=1)
    weigh("lazy.npy", 0.75)
    with pytest.raises(ObjectSeekerError, match="detector"):
        run_here(spec, tmp_path / "run", modules.load("weighed:lazy"), limit=3)
    weigh("lazy.npy", 0.5)
    assert run_here(spec, tmp_path / "run", modules.load("weighed:lazy"), limit=3).complete


def test_a_file_that_only_the_source_names_counts(modules):
    """ONNX Runtime, OpenCV and others open files where Python does not see it."""
    modules.write(plain=PLAIN + 'session = open_elsewhere = "model.bin"\n')
    Path("model.bin").write_bytes(b"1")
    before = modules.load("plain:detect")
    assert before.unverified_reason is None
    Path("model.bin").write_bytes(b"2")
    assert modules.load("plain:detect").fingerprint != before.fingerprint


@pytest.mark.parametrize("how", ["import helper", "from helper import K", "__import__('helper')"])
def test_modules_beside_it_are_part_of_the_identity(modules, how):
    modules.write(plain=f"{how}\n{PLAIN}", helper="K = 1\n")
    before = modules.load("plain:detect").fingerprint
    assert modules.load("plain:detect").fingerprint == before
    modules.write(helper="K = 2\n")
    assert modules.load("plain:detect").fingerprint != before


def test_what_it_writes_is_no_part_of_it(modules):
    modules.write(plain=f"{PLAIN}open('log.txt', 'a').write('x')\n")
    assert modules.load("plain:detect").fingerprint == modules.load("plain:detect").fingerprint


def test_one_that_reads_nothing_says_that_it_cannot_tell(modules):
    modules.write(plain=PLAIN)
    unverified_reason = modules.load("plain:detect").unverified_reason
    assert unverified_reason.startswith("the weights of python:plain:detect cannot be verified, because Python sees it")
    assert "attribute fingerprint" in unverified_reason
    assert "failed on a gray image of 96x64 (RuntimeError)" in modules.load("plain:fails").unverified_reason


def test_one_that_was_imported_before_says_so(modules, tmp_path, monkeypatch):
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(earlier=WEIGHED)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("earlier")
    assert "earlier had been imported before" in load_detector("python:earlier:lazy").unverified_reason


def test_a_token_stands_for_what_it_reads_and_the_source_still_counts(modules):
    modules.write(plain=PLAIN)
    before = modules.load("plain:vouched")
    assert before.unverified_reason is None
    assert before.fingerprint.startswith(f"plain:vouched (fingerprint release 7, cpu {instruction_set()}) sha256:")
    modules.write(plain=PLAIN.replace("release 7", "release 8"))
    assert modules.load("plain:vouched").fingerprint != before.fingerprint
    modules.write(plain=f"{PLAIN}vouched.fingerprint = 7\n")
    with pytest.raises(ObjectSeekerError, match="fingerprint of python:plain:vouched must be a short string: got '7'"):
        modules.load("plain:vouched")


def test_names_by_label_are_names(modules):
    modules.write(plain=PLAIN)
    assert modules.load("plain:fails").names == ("person", "class_1", "car")
    assert modules.load("plain:fails", class_names=("a", "b")).names == ("a", "b")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("'person'", "names of python:plain:detect must be strings by label: TypeError: got 'person'"),
        ("7", "must be strings by label: TypeError: got 7"),
        ("{'a': 'b'}", "must be strings by label: ValueError"),
        ("{10**9: 'b'}", "class names must have labels below 65,536"),
        ("__import__('itertools').count()", "class names must have labels below 65,536"),
    ],
)
def test_names_that_are_none_are_refused_in_one_sentence(modules, names, message):
    modules.write(plain=f"{PLAIN}detect.names = {names}\n")
    with pytest.raises(ObjectSeekerError, match=message) as rejected:
        modules.load("plain:detect")
    assert len(str(rejected.value)) < 300


def test_names_that_raise_are_refused_and_none_are_no_names(modules):
    raising = "class Raises:\n    __call__ = detect\n    names = property(lambda self: 1 / 0)\nraises = Raises()\n"
    modules.write(plain=f"{PLAIN}{raising}detect.names = None\n")
    with pytest.raises(ObjectSeekerError, match="cannot read the names of python:plain:raises: ZeroDivisionError"):
        modules.load("plain:raises")
    assert modules.load("plain:detect").names == ()


def test_a_module_that_leaves_is_named(modules):
    modules.write(leaves="raise SystemExit(3)\n")
    with pytest.raises(ObjectSeekerError, match="importing leaves failed: SystemExit: 3"):
        modules.load("leaves:detect")


def test_a_program_that_is_an_installed_module_reads_weights_like_any_other(modules, tmp_path):
    """`python -m server`, or a test runner: its own import has not ended while it loads a detector."""
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(weighed=WEIGHED)
    fingerprints = []
    installed = str(Path(np.__file__).parent / "server.py")  # the name of a file that could have been installed
    program = "fingerprints.append(modules.load('weighed:eager').fingerprint)"
    exec(compile(program, installed, "exec"), {"fingerprints": fingerprints, "modules": modules})
    assert fingerprints == [modules.load("weighed:eager").fingerprint]
    assert "eager.npy" in fingerprints[0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("import pyarrow.parquet", "pyarrow may read files where Python does not see it"),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)", "it starts another process"),
        ("import ctypes; ctypes.CDLL(None)", "it loads a library"),
    ],
)
def test_what_python_cannot_look_into_is_said(modules, line, why):
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(weighed=WEIGHED)
    assert modules.load("weighed:lazy").unverified_reason is None
    modules.write(weighed=f"{line}\n{WEIGHED}")
    assert why in modules.load("weighed:lazy").unverified_reason
    modules.write(weighed=f"{line}\n{WEIGHED}fingerprint = 'release 8'\n")
    assert modules.load("weighed:lazy").unverified_reason is None


def test_settings_that_an_installed_package_reads_while_it_is_imported_are_no_weights(modules, tmp_path, monkeypatch):
    (tmp_path / "gear.ini").write_text("color = gray\n")
    package = tmp_path / "site-packages" / "gear.py"
    package.parent.mkdir()
    package.write_text(f"SETTINGS = open({str(tmp_path / 'gear.ini')!r}).read()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    weigh("eager.npy", 0.5)
    weigh("lazy.npy", 0.5)
    modules.write(weighed=f"import gear\n{WEIGHED}")

    assert "gear.ini" not in modules.load("weighed:lazy").fingerprint
    sys.modules.pop("gear")
