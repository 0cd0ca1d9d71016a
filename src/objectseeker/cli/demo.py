"""The command `objectseeker demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from objectseeker.cli._app import app
from objectseeker.cli._console import print_json, print_next, progress, say, terminal_table
from objectseeker.cli._options import OUTPUT, Json, PatchArea, Settings, default_defense, option
from objectseeker.core.threats import parse_area
from objectseeker.errors import ObjectSeekerError

MIN_SHOWN = 0.01  # share of the image; smaller objects are in the report only


@app.command()
def demo(
    settings: Settings = None,
    patch_area: PatchArea = "1%",
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for the report and the annotated images.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Defend and certify the built-in detector on six bundled images.

    It takes half a minute, without a GPU or a download. The report opens with an image: drag the patch over it.

    Example:  objectseeker demo
    Example:  objectseeker demo --set masks=bands:1% --patch-area 0.5% --out demo
    """
    from objectseeker.demo import demo_run as job
    from objectseeker.demo.samples import samples

    defense, area = default_defense("builtin", settings or ()), parse_area(patch_area)
    if defense.detector != "builtin":
        raise ObjectSeekerError(f"the demo uses the built-in detector: got {defense.detector}. Use detect instead.")
    count = len(samples())
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with progress("certifying images", count) as bar:
        for verdicts in job.run(defense, patch_area=area):
            job.save(out, verdicts)
            results.append(verdicts)
            bar.advance()
    rows = [row for verdicts in results for row in verdicts.rows()]
    job.save_report(out / "report.html", results, defense, patch_area=area)
    if as_json:
        print_json({"out": str(out), "patch_area": area, "masks": str(defense.masks), "objects": rows})
        return
    counts = ", ".join(f"{sum(row['certified'][location] for row in rows)} {location}" for location in job.LOCATIONS)
    large = [row for row in rows if row["area_fraction"] >= MIN_SHOWN]
    title = f"Objects of at least 1 % of their image, square patch of {area:.2%}; {len(rows) - len(large)} are smaller"
    say(
        f"certified of {len(rows)} objects in {count} images: {counts}",
        terminal_table(title, list(map(_cells, large))),
        "found: detected without the defense. far, close, over: no patch more than 10 % of the image away from the "
        "object, next to it, or on it can hide it. Vacuously certified far (too large for any far position): "
        f"{sum(row['vacuous_far'] for row in rows)}",
        f"Report: {out / 'report.html'}",
    )
    print_next("objectseeker check SPEC, for your own detector, such as onnx:model.onnx")


def _cells(row: dict[str, Any]) -> dict[str, str]:
    side = row["largest_certified_square"]
    flags = {"found": row["found_undefended"]} | row["certified"]
    return {
        "image": row["image"],
        "object": f"{row['object']}, {row['area_fraction']:.1%}",
        **{name: "yes" if flag else "no" for name, flag in flags.items()},
        "largest patch": f"{side} px, {row['largest_certified_area']:.1%}" if side else "-",
    }
