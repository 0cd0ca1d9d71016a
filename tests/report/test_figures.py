"""The paper's figures from one run: tables that are the sweeps' rows, and plots that are always the same."""

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import PIL.Image
import pytest
from evaluation_cases import EVIDENCE, PAPER, VOCABULARY, changed, evaluated, image, run, tabled

from objectseeker import Bands, Halves, ObjectSeekerError
from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.metrics import ImageSet, sweeps
from objectseeker.report import plots
from objectseeker.report.figure_plots import FIGURES, FigureContext, line_counts
from objectseeker.report.figures import draw_figures

LINES = 6
FLOOR = 0.1
OUTCOME = [
    *("ap50", "base_threshold", "mask_threshold", "evidence_threshold", "clean_recall", "max_clean_recall", "fppi"),
    *(f"certified_{where}" for where in PATCH_LOCATIONS),
    "vacuous_far",
]
CERTIFIED = OUTCOME[-5:-1]
COLUMNS = {
    "precision-recall": ["detector", "base_threshold", "precision", "recall", "clean_recall"],
    "clean-recall": ["asked_clean_recall", *OUTCOME],
    "fppi": ["asked_fppi", *OUTCOME, "undefended_clean_recall"],
    "lines": ["k", "forward_passes", "masks", *OUTCOME, "undefended_ap50"],
    "cost": ["k", "forward_passes", "masks", *OUTCOME],
    "alpha": ["alpha", *OUTCOME, "undefended_ap50"],
    "beta": ["beta", *OUTCOME, "undefended_ap50"],
    "filter-ioa": ["filter_ioa", *OUTCOME, "undefended_ap50"],
    "certification-threshold": ["certification_threshold", *OUTCOME],
    "variants": [
        *("detector", "ap50", "base_threshold", "mask_threshold", "clean_recall", *CERTIFIED, "vacuous_far"),
        *("false_alerts", "false_alert_rate"),
    ],
    "iou-threshold": ["certification_threshold", *OUTCOME],
    "patch-area": ["k", "patch_area", "masks", *OUTCOME, "joint_certified_recall"],
    "patch-aspect": ["patch_aspect", *OUTCOME],
    "object-size": ["from", "to", "objects", "objects_share", *CERTIFIED, "vacuous_far"],
    "splits": ["split", "images", "objects", "undefended_ap50", *OUTCOME],
}


@pytest.fixture(scope="module")
def images():
    all_over = image([(0, 0, 100, 100, 0.9, 0)], [(2, 2, 98, 98, 0)], lines=LINES, number=7)  # nothing is far from it
    return [*run(33, 7, generous=1.0, lines=LINES, crowd=0.9), all_over]


@pytest.fixture(scope="module")
def scene(images):
    return ImageSet.from_images(images, VOCABULARY)


@pytest.fixture(scope="module")
def written(scene, tmp_path_factory):
    out = tmp_path_factory.mktemp("figures") / "new"
    progress = []
    context = FigureContext(scene, PAPER, Halves(LINES), FLOOR)
    files = draw_figures(context, out, on_progress=lambda *step: progress.append(step))
    return out, files, progress


def table(out, name):
    with (out / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def as_text(row):
    return {name: "" if value is None else str(value) for name, value in row.items()}


def write(scene, out, settings=PAPER, lines=LINES, mask_floor=FLOOR, **options):
    return draw_figures(FigureContext(scene, settings, Halves(lines), mask_floor), out, **options)


def named(rows):
    """The rows of a sweep over lines, with what masks those are."""
    return [
        {key: value for key, value in row.items() if key in ("k", "forward_passes", "patch_area")}
        | {"masks": f"halves:{LINES}" if row["k"] == LINES else f"{row['k']} of the lines of halves:{LINES}"}
        | row
        for row in rows
    ]


def test_every_figure_is_a_table_and_two_plots(written):
    out, files, progress = written
    assert files == [out / "figures.json"] + [
        out / f"{name}.{kind}" for name in FIGURES for kind in ("csv", "svg", "png")
    ]
    assert sorted(out.iterdir()) == sorted(files)
    assert progress == [(done, len(FIGURES)) for done in range(len(FIGURES) + 1)]
    assert {name: list(table(out, name)[0]) for name in FIGURES} == COLUMNS
    for name in FIGURES:
        assert ET.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
        with PIL.Image.open(out / f"{name}.png") as plot:
            assert plot.width >= 1000
            assert np.ptp(np.asarray(plot.convert("L"))) > 200


def test_tables_are_the_rows_of_the_sweeps(written, scene):
    out, _, _ = written
    thresholds = tabled(sweeps.by_threshold, scene, PAPER)
    means = sweeps.mean_over_thresholds(sweeps.by_threshold(scene, PAPER))
    expected = {
        "precision-recall": tabled(sweeps.precision_recall, scene, PAPER),
        "clean-recall": tabled(sweeps.by_clean_recall, scene, PAPER, [step / 20 for step in range(2, 20)]),
        "certification-threshold": [
            *thresholds,
            dict.fromkeys(thresholds[0])
            | {"certification_threshold": "mean"}
            | {f"certified_{w}": m for w, m in means.items()},
        ],
        "patch-area": named(tabled(sweeps.by_patch_area, scene, PAPER, ks=[2, 4, 6])),
        "patch-aspect": tabled(sweeps.by_patch_aspect, scene, PAPER),
        "object-size": tabled(sweeps.by_object_size, scene, PAPER),
        "splits": tabled(sweeps.by_split, scene, PAPER),
    }
    for name, rows in expected.items():
        assert table(out, name) == [as_text(row) for row in rows], name


def test_sweeps_of_one_setting_have_the_undefended_detector_beside_them(written, scene, images):
    out, _, _ = written
    undefended = {"undefended_ap50": evaluated(images, PAPER)["undefended"]["ap50"]}
    tenths = [step / 10 for step in range(10)]
    lines = named(tabled(sweeps.by_lines, scene, PAPER, [1, 2, 3, 4, 5, 6]))
    expected = {
        "lines": lines,
        "alpha": tabled(sweeps.by_schedule, scene, PAPER, "alpha", tenths[1:]),  # no score below the floor
        "filter-ioa": tabled(sweeps.by_filter_ioa, scene, PAPER, tenths[3:]),
        "beta": [
            {"beta": beta}
            | tabled(sweeps.by_schedule, scene, changed(PAPER, beta=beta), "alpha", [PAPER.threshold_schedule.alpha])[0]
            for beta in tenths
        ],
    }
    for name, rows in expected.items():
        assert table(out, name) == [as_text({key: row[key] for key in COLUMNS[name][:-1]} | undefended) for row in rows]
    assert table(out, "cost") == [as_text({key: row[key] for key in COLUMNS["cost"]}) for row in lines]


def test_variants_are_the_rows_of_evaluate(written, images):
    out, _, _ = written
    rows = {row.pop("detector"): row for row in table(out, "variants")}
    assert list(rows) == ["undefended", "IoA", "IoA, class-agnostic", "IoU", "IoU, class-agnostic"]
    assert rows["undefended"]["ap50"] == str(evaluated(images, PAPER)["undefended"]["ap50"])
    for name, settings in (
        ("IoA", PAPER),
        ("IoA, class-agnostic", PAPER.class_agnostic()),
        ("IoU", PAPER.iou_variant()),
        ("IoU, class-agnostic", PAPER.class_agnostic().iou_variant()),
    ):
        found = evaluated(images, settings)["defended"]
        assert rows[name]["ap50"] == str(found["ap50"])
        for where in PATCH_LOCATIONS:
            assert rows[name][f"certified_{where}"] == str(found["certified_recall"][where])
        assert rows[name]["false_alerts"] == str(found["false_alerts"])
    (half,) = [row for row in table(out, "iou-threshold") if row["certification_threshold"] == "0.5"]
    assert half["ap50"] == rows["IoU"]["ap50"]
    assert [half[column] for column in CERTIFIED] == [rows["IoU"][column] for column in CERTIFIED]
    falling = [float(row["certified_far"]) for row in table(out, "iou-threshold")]
    assert falling == sorted(falling, reverse=True)


def test_the_setting_in_use_is_always_among_the_values(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "unavailable_reason", lambda: "tables will do")
    settings = changed(EVIDENCE, alpha=0.77, beta=0.33, filter_ioa=0.55, patch_area=0.03, patch_aspect=3.0)
    names = {
        "alpha": "alpha",
        "beta": "beta",
        "filter-ioa": "filter_ioa",
        "patch-area": "patch_area",
        "patch-aspect": "patch_aspect",
    }
    write(scene, tmp_path, settings, mask_floor=0.2, only=names)
    ours = evaluated(scene.images, settings)["defended"]
    for name, column in names.items():
        (row,) = [
            row
            for row in table(tmp_path, name)
            if row[column] == str(settings.to_dict()[column]) and row.get("k", str(LINES)) == str(LINES)
        ]
        assert row["ap50"] == str(ours["ap50"])
        assert {where: row[f"certified_{where}"] for where in PATCH_LOCATIONS} == as_text(ours["certified_recall"])
    assert min(float(row["alpha"]) for row in table(tmp_path, "alpha")) == 0.2


def test_no_score_below_the_floor_is_tried(scene, tmp_path, monkeypatch):
    """With a beta above the floor alpha may lie below it; then a smaller beta would look at boxes never stored."""
    monkeypatch.setattr(plots, "unavailable_reason", lambda: "tables will do")
    settings = changed(PAPER, alpha=0.05, beta=0.5)
    write(scene, tmp_path, settings, mask_floor=0.35, only=["alpha", "beta"])
    assert [row["alpha"] for row in table(tmp_path, "alpha")] == ["0.05", *(f"0.{n}" for n in range(4, 10))]
    assert [row["beta"] for row in table(tmp_path, "beta")] == [f"0.{n}" for n in range(4, 10)]
    with pytest.raises(ObjectSeekerError, match=r"scores of at least 0\.5 .* the run stores none below 0\.6"):
        write(scene, tmp_path, settings, mask_floor=0.6)


def test_what_the_figures_were_made_with_lies_beside_them(written, scene, images):
    out, _, _ = written
    about = json.loads((out / "figures.json").read_text(encoding="utf-8"))
    ours = evaluated(images, PAPER)
    assert about == {
        "images": ours["images"],
        "objects": ours["objects"],
        "vacuous_far": ours["defended"]["vacuous_far"],
        "masks": f"halves:{LINES}",
        "mask_floor": FLOOR,
        "settings": ours["settings"],
        "figures": {name: figure.description for name, figure in FIGURES.items()},
    }
    assert about["vacuous_far"] > 0


def test_plots_show_the_tables(scene, tmp_path, monkeypatch):
    shown = {}
    monkeypatch.setattr(plots, "save", lambda plot, stem: [shown.setdefault(stem.name, plot) and stem])
    write(scene, tmp_path, changed(PAPER, clean_recall=0.9))
    assert list(shown) == list(FIGURES)
    for name, plot in shown.items():
        for line in [one for panel in plot.panels for one in panel.series if isinstance(one, plots.Line)]:
            where, *k = line.label.replace(" (", ", (").split(", ")
            if where in PATCH_LOCATIONS:
                rows = [row for row in table(tmp_path, name) if row.get("certification_threshold") != "mean"]
                rows = [row for row in rows if name != "patch-area" or k == [f"k = {row['k']}"]]
                assert [as_text({"y": y})["y"] for y in line.y] == [row[f"certified_{where}"] for row in rows]
                assert line.style.color == plots.LINE_STYLES[where].color
        assert ("1 of the objects have no far position" in plot.note) == (name != "precision-recall")
    gaps = {name for name, plot in shown.items() if "Gaps: clean recall 90 % is not reached" in plot.note}
    assert gaps == {
        name
        for name in FIGURES
        if name not in ("precision-recall", "clean-recall", "fppi")
        and any(
            row["certified_far"] == "" and row.get("objects") != "0" and row.get("detector") != "undefended"
            for row in table(tmp_path, name)
        )
    }
    assert {"lines", "alpha"} <= gaps
    (jointly,) = [one for one in shown["patch-area"].panels[-1].series if one.label == f"remain, k = {LINES}"]
    rows = [row for row in table(tmp_path, "patch-area") if row["k"] == str(LINES)]
    assert [as_text({"y": y})["y"] for y in jointly.y] == [row["joint_certified_recall"] for row in rows]


def test_what_remains_jointly_is_what_evaluate_says_and_never_less_than_one_by_one(written, images):
    out, _, _ = written
    rows = [row for row in table(out, "patch-area") if row["k"] == str(LINES)]
    assert all(float(row["joint_certified_recall"]) >= float(row["certified_anywhere"]) for row in rows)
    (used,) = [row for row in rows if float(row["patch_area"]) == PAPER.threat.area]
    assert used["joint_certified_recall"] == str(evaluated(images, PAPER)["defended"]["joint_certified_recall"])
    assert {row["joint_certified_recall"] for row in table(out, "patch-area") if row["k"] != str(LINES)} == {""}


def test_a_place_for_a_panel_that_nobody_fills_has_no_axes():
    line = plots.Line("undefended", [1.0], [2.0], plots.LINE_STYLES["undefended"])
    panel = plots.Panel(x_label="x", y_label="y", series=[line])
    figure = plots._draw(plots.Plot("three", [panel] * 3, "note"))
    assert [axes.axison for axes in figure.axes] == [True, True, True, False]
    assert figure.axes[0].lines[0].get_marker() == "o"  # one point is not a line


def test_only_some_figures(scene, tmp_path):
    files = write(scene, tmp_path, only=["cost", "clean-recall", "cost"])
    names = [f"{name}.{kind}" for name in ("clean-recall", "cost") for kind in ("csv", "svg", "png")]
    assert [file.name for file in files] == ["figures.json", *names]
    with pytest.raises(ObjectSeekerError, match=r"no figure is called 'costs': choose from precision-recall, .*splits"):
        write(scene, tmp_path, only=["cost", "costs"])


def test_the_same_numbers_give_the_same_files(scene, tmp_path, monkeypatch):
    """At another time and with other defaults."""
    import matplotlib

    write(scene, tmp_path / "a", only=["object-size", "lines"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.dpi": 7}):
        write(scene, tmp_path / "b", only=["object-size", "lines"])
        assert matplotlib.rcParams["font.size"] == 20
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_plotting_leaves_the_callers_figures_alone(tmp_path):
    code = (
        "import sys; from pathlib import Path; from objectseeker.report.plots import *;"
        "panel = Panel(x_label='x', y_label='y', series=[Line('far', [1, None, 3], [1, 2, None], LINE_STYLES['far'])]);"
        "save(Plot('title', [panel], 'note'), Path(sys.argv[1]) / 'v1.0');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v1.0.png", "v1.0.svg"]


def test_without_matplotlib_there_are_tables(scene, tmp_path, monkeypatch):
    assert plots.unavailable_reason() is None
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = write(scene, tmp_path, only=["clean-recall", "splits"])
    assert [file.name for file in files] == ["figures.json", "clean-recall.csv", "splits.csv"]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert table(tmp_path, "splits") == [as_text(row) for row in tabled(sweeps.by_split, scene, PAPER)]
    assert "pip install 'objectseeker[plots]'" in plots.unavailable_reason()


def test_a_recall_that_is_not_reached_leaves_gaps(tmp_path):
    blind = [image([], [(40, 40, 60, 60, 0)], lines=2, number=n) for n in range(2)]
    names = ["precision-recall", "lines", "certification-threshold", "patch-area", "object-size", "splits"]
    notes = []
    write(ImageSet.from_images(blind, VOCABULARY), tmp_path, lines=2, only=names, on_warning=notes.append)
    assert {row["precision"] for row in table(tmp_path, "precision-recall")} == {""}
    assert {row["certified_far"] for name in names[1:] for row in table(tmp_path, name)} == {""}
    assert all((tmp_path / f"{name}.png").exists() for name in names)
    # Not reached is what the image says instead of empty axes, and what is noted.
    assert len(notes) == 3
    assert notes[0] == "nothing to draw in precision-recall: there are no boxes"
    assert notes[1].startswith(
        "nothing to draw in lines, certification-threshold, patch-area: clean recall 50% is not reached, at most"
    )
    assert notes[2] == "nothing to draw in object-size: clean recall 50 % is not reached"
    assert "<!-- clean recall 50% is not reached, at most -->" in (tmp_path / "certification-threshold.svg").read_text()


def test_the_lines_of_a_sweep_are_not_those_that_can_be_deployed(written, scene, tmp_path):
    out, _, _ = written
    about = json.loads((out / "figures.json").read_text(encoding="utf-8"))
    shown = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "save", lambda plot, stem: [shown.setdefault(stem.name, plot) and stem])
        write(scene, tmp_path, only=["lines", "cost", "patch-area", "alpha"])
    for name in ("lines", "cost", "patch-area"):
        assert (
            "every n-th of the stored lines; not Halves(k), and no defense can be deployed with them"
            in about["figures"][name]
        )
        assert "Every n-th of the stored lines" in shown[name].note
        assert {row["masks"] for row in table(out, name)} >= {"2 of the lines of halves:6", "halves:6"}
    assert "n-th" not in shown["alpha"].note


def test_bands_have_no_lines_to_leave_out(tmp_path):
    made = run(33, 6, generous=1.0, sure=0.9, make=lambda width, height, lines: Bands(0.05).masks(width, height))
    notes = []
    only = ["lines", "cost", "patch-area", "certification-threshold"]
    context = FigureContext(
        ImageSet.from_images(made, VOCABULARY), changed(PAPER, clean_recall=None), Bands(0.05), FLOOR
    )
    files = draw_figures(context, tmp_path, only=only, on_warning=notes.append)
    assert {file.stem for file in files} == {"figures", "patch-area", "certification-threshold"}
    assert notes == ["skipped lines, cost: bands:0.05 has no lines of which a subset could be used"]
    assert list(table(tmp_path, "patch-area")[0]) == ["patch_area", *OUTCOME, "joint_certified_recall"]
    assert max(float(row["certified_far"]) for row in table(tmp_path, "patch-area")) > 0


def test_figures_at_the_own_score_of_a_rule(scene, tmp_path):
    own = changed(PAPER, clean_recall=None)
    shown = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "save", lambda plot, stem: [shown.setdefault(stem.name, plot) and stem])
        write(scene, tmp_path, own)
    assert "at\xa0base_threshold\xa00.5" in shown["alpha"].note
    by_alpha = table(tmp_path, "alpha")
    assert {row["base_threshold"] for row in by_alpha} == {"0.5"}
    assert len({row["mask_threshold"] for row in by_alpha}) > 3  # the own point moves with what is varied


def test_a_folder_that_cannot_be_written(scene, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ObjectSeekerError, match=r"cannot write into .*file"):
        write(scene, tmp_path / "file", only=["cost"])


def test_numbers_of_lines():
    assert line_counts(30, 6) == [5, 10, 15, 20, 25, 30]
    assert line_counts(30, 3) == [10, 20, 30]
    assert line_counts(1, 6) == [1]
    assert line_counts(4, 6) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("values", "zero_based_limits", "zoomed_limits"),
    [
        ([None, 12.1, 41.0], (0, 50), (9.21, 43.89)),
        ([0.0], (0, 5), (0, 10)),
        ([100.0, None], (0, 100), (90, 100)),
        ([0.0, 100.0], (0, 100), (0, 100)),
        ([70.0, 71.0], (0, 80), (65.5, 75.5)),
        ([None], (0, 5), (0, 10)),
    ],
)
def test_limits_hold_all_values(values, zero_based_limits, zoomed_limits):
    assert plots.zero_based_limits(values) == zero_based_limits
    assert plots.zoomed_limits(values) == pytest.approx(zoomed_limits)
