"""What is published: a wheel and a source distribution that hold what they should, and one version."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import objectseeker

ROOT = Path(__file__).parents[1]
BASE = f"https://github.com/[^/]+/objectseeker/(?:blob|raw)/v{re.escape(objectseeker.__version__)}/"
QUOTES = {  # files outside the package that quote the version
    "CITATION.cff": r"^version: (.*)$",
    "examples/fiftyone/fiftyone.yml": r"^version: (.*)$",
    "docs/guides/integrations.md": r"objectseeker(?:@|/raw/)v([\d.]+\d)",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def test_the_wheel_holds_the_package_and_its_types(built):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wheel.stat().st_size < 15e6
    assert {"objectseeker/py.typed", "objectseeker/detectors/builtin/seeker.onnx"} <= names
    assert not any(name.endswith("objectness.onnx") for name in names)
    package = ROOT / "src"
    expected = {str(file.relative_to(package)) for file in package.rglob("*.py")}
    assert expected <= names
    assert {name.split("/")[0] for name in names} == {
        "objectseeker",
        f"objectseeker-{objectseeker.__version__}.dist-info",
    }


def test_links_of_the_readme_lead_to_files_of_the_release(built):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10
    for link in links:
        assert re.match(r"https?://|#", link), link
        if own := re.match(BASE, link):
            assert (ROOT / link[own.end() :].partition("#")[0]).exists(), link
    for image in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text):
        assert not re.match(BASE, image) or "/raw/" in image, image
    assert metadata["Version"] == objectseeker.__version__
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL")} >= {
        "Source",
        "Documentation",
        "Changelog",
    }
    not_in_all = {"all", "browser", "dev", "docs", "lint", "ray", "test"}
    everything = set(metadata.get_all("Provides-Extra")) - not_in_all
    required = metadata.get_all("Requires-Dist")
    for extra in everything:  # `all` is every extra that a user of one machine needs
        for line in required:
            if line.endswith(f"extra == '{extra}'"):
                assert line.replace(f"'{extra}'", "'all'") in required, line


def test_the_source_distribution_holds_what_its_tests_need(built):
    _, source = built
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("needs a clone: what git tracks is compared")
    own = {".ci/run", ".pre-commit-config.yaml"}  # of the repository
    assert set(tracked.stdout.split("\n")) - {""} - names == own


def test_the_version_has_one_place():
    for file, pattern in QUOTES.items():
        if (ROOT / file).exists():
            found = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
            assert set(found) == {objectseeker.__version__}, file


@pytest.mark.parametrize(
    "address", ["https://github.com/acme/objectseeker", "https://git.example.org/lab/cv/objectseeker"]
)
def test_the_release_step_writes_the_address_everywhere(address, tmp_path):
    """Before it an index rejects the package; after it no file names the placeholder, and links lead to the tag."""
    step = Path("scripts/prepare_release.py")
    if not (ROOT / step).exists():
        pytest.skip("the scripts are not part of the package")
    pytest.importorskip("hatchling")
    if "OWNER" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        pytest.skip("this release is prepared")
    clone = tmp_path / "clone"
    names = ["pyproject.toml", "CITATION.cff", "CHANGELOG.md", "README.md", "LICENSE", "hatch_build.py", str(step)]
    for name in [*names, "docs/guides/integrations.md", "src/objectseeker/__init__.py"]:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    assert "Private :: Do Not Upload" in metadata_of(clone).get_all("Classifier")

    def prepare(*arguments):
        command = [sys.executable, str(step), *arguments, "--date", "2031-05-06"]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True)

    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    assert "must be https://" in prepare("github.com/acme").stderr
    assert before == {path: path.read_bytes() for path in before}
    done = prepare(address)
    assert done.returncode == 0, done.stderr
    assert "prepared already" in prepare(address).stderr
    released = [*done.stdout.split(), "README.md"]
    assert not any("OWNER" in (clone / name).read_text(encoding="utf-8") for name in released)
    assert yaml.safe_load((clone / "CITATION.cff").read_text())["date-released"].isoformat() == "2031-05-06"
    assert f"## {objectseeker.__version__} (2031-05-06)" in (clone / "CHANGELOG.md").read_text()
    metadata = metadata_of(clone)
    assert "Private :: Do Not Upload" not in metadata.get_all("Classifier")
    assert f"Source, {address}" in metadata.get_all("Project-URL")
    text = metadata.get_payload()
    assert "OWNER" not in str(metadata)
    assert f"]({address}/blob/v{objectseeker.__version__}/docs/index.md)" in text


def metadata_of(folder):
    """Return the metadata of the wheel that a folder builds."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        return Parser().parsestr(archive.read(name).decode())
