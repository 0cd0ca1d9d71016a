"""objectseeker tune"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from objectseeker import ObjectSeekerError
from objectseeker.cli._app import app
from objectseeker.cli._console import escape, print_json, progress, stdout_console, warn
from objectseeker.cli._options import (
    Json,
    RunFolder,
    Slices,
    TagsFile,
    ThreatModelOptions,
    expand_groups,
    open_run,
    parse_operating_point,
    print_rule,
    tags_and_slices,
)

if TYPE_CHECKING:
    from objectseeker.metrics import SearchSpace, SearchSpec, TuningResult
    from objectseeker.metrics.slices import ImageTags, SliceMetrics
    from objectseeker.runs.run import Run


FIXABLE = ("filter_ioa", "edge_factor", "cluster_distance")


@app.command()
@expand_groups
def tune(
    run: RunFolder,
    max_ap_loss: Annotated[float, typer.Option(metavar="POINTS", help="Clean AP50 that may be lost, in points.")] = 1.0,
    operating_point: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Certify most at clean_recall=0.8 (default) or fppi=1."),
    ] = None,
    passes: Annotated[
        list[int] | None,
        typer.Option(help="Forward passes per image at most: choose the masks, too, from the run's; repeatable."),
    ] = None,
    masks: Annotated[
        list[str] | None,
        typer.Option(metavar="RECIPE", help="With --passes: only these masks, among those of the run; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"Fix {', '.join(FIXABLE)} instead of searching it."),
    ] = None,
    tags: TagsFile = None,
    slices: Slices = None,
    seed: Annotated[int, typer.Option(help="Seed of the split into two halves.")] = 0,
    processes: Annotated[int, typer.Option(help="With --passes: recipes that are searched at the same time.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for defense.json, tables, JSON and a plot.")] = None,
    as_json: Json = False,
    *,
    threat: ThreatModelOptions,
) -> None:
    """Search the rule that certifies most within a clean AP loss, on one half of the images; report the other half.

    The paper's rule and the evidence rule are compared, for several losses: the frontier. The best within --max-ap-loss
    is written to defense.json, for every other command: detect, evaluate, report, attack, gate.

    With --passes N masks are chosen, too: of all recipes whose masks are among those of the run, the one that certifies
    most with at most N forward passes on every image. What is found is estimated from the run's views; to certify it,
    observe again with the defense.json. With several N there is a defense-N.json for each.

    Example:  objectseeker tune runs/voc --max-ap-loss 1 --operating-point clean_recall=0.8 --out tuned
    Example:  objectseeker tune runs/voc --operating-point fppi=1 --tags tags.csv --by weather --by class --out tuned
    Example:  objectseeker tune runs/sum --passes 20 --passes 40 --processes 2 --out tuned
    Example:  objectseeker detect photos/ --defense tuned/defense.json --out found
    """
    from objectseeker import metrics
    from objectseeker.cli._tuning_tables import render_tuning, save_tuning, tuning_dict
    from objectseeker.metrics import SearchSpec

    stored = open_run(run)
    point = parse_operating_point(operating_point)
    if "base_threshold" in point:
        raise ObjectSeekerError(f"tune searches at clean_recall or fppi: got --operating-point {operating_point}")
    space = _search_space(settings or ())
    if masks and not passes:
        raise ObjectSeekerError(f"--masks {masks[0]} chooses among the run's masks: give --passes, too")
    if processes != 1 and not passes:
        raise ObjectSeekerError(f"--processes {processes} is for several recipes at once: give --passes, too")
    tagged, asked = tags_and_slices(stored, tags, slices)
    if asked and passes:
        raise ObjectSeekerError(f"--by {asked[0]} is about one rule: omit --passes, or evaluate what it chose")
    if stored.manifest.detector_spec is None:
        warn("the run does not say how its detector is loaded: what is found is shown, but no defense is written")
    limits: dict[str, Any] = {"max_ap_loss": max_ap_loss, "threat": threat.threat_model(), "seed": seed, **point}
    if passes:
        floors = stored.manifest.observation_settings
        search = SearchSpec(mask_floor=floors.mask_floor, base_floor=floors.base_floor, search_space=space, **limits)
        _tune_within_budget(stored, search, passes, masks or [], processes, out, as_json)
        return
    with progress("settings tried", 0) as bar:
        tuning = metrics.tune(stored, search_space=space, on_trial=bar.count, **limits)
    rule, defense = tuning.chosen[0], tuning.defense
    if rule.base_threshold < stored.manifest.observation_settings.base_floor:
        warn(f"base_threshold {rule.base_threshold} is below the lowest score that the run stores of base boxes")
    rows = _sliced(stored, tuning, tagged, asked) if asked else []
    if out is not None:
        save_tuning(out, tuning, rows)
        if defense is not None:
            defense.save(out / "defense.json")
        _warn_without_plots()
    if as_json:
        print_json(tuning_dict(tuning, rows))
        return
    _print(render_tuning(tuning, rows))
    if defense is None:
        return
    if out is None:
        print_rule(defense)
        return
    written = escape(str(out / "defense.json"))
    stdout_console.print(f"Written: {written}; the other rule and the frontier: {escape(str(out / 'tuning.md'))}")
    stdout_console.print(f"Next: objectseeker evaluate RUN_OF_OTHER_IMAGES --defense {written}")


def _search_space(settings: Sequence[str]) -> SearchSpace:
    """Return what to search, with the values that --set fixes."""
    from objectseeker.metrics import SearchSpace

    fixed: dict[str, tuple[float, ...]] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        try:
            if key not in FIXABLE or not equals:
                raise ValueError
            fixed[key] = (float(value),)
        except ValueError:
            raise ObjectSeekerError(f"--set fixes {', '.join(FIXABLE)}: got {setting[:80]!r}. Use KEY=VALUE.") from None
    return SearchSpace(**fixed)


def _sliced(run: Run, tuning: TuningResult, tags: ImageTags, requested: list[str]) -> list[SliceMetrics]:
    """The best setting slice by slice, on the images that were not searched, where they have its metrics."""
    from objectseeker.metrics.evaluation import evaluate_images
    from objectseeker.metrics.slices import measure_slices

    point = tuning.best.held_out_split.outcome.point
    if point is None:
        return []
    every = run.images()
    chosen = tuning.held_out_images(len(every))
    settings = replace(tuning.best.settings, rule=point.rule, clean_recall=None, fppi=None)
    images = [every[n] for n in chosen.tolist()]
    with progress("measuring slices", len(images)) as bar:
        found = evaluate_images(images, run.label_map, settings, intervals=False, on_image=bar.advance)
    return measure_slices(found.tally, tags.of(chosen), requested, settings.threat)


def _tune_within_budget(
    run: Run, search: SearchSpec, passes: list[int], masks: list[str], processes: int, out: Path | None, as_json: bool
) -> None:
    """The best recipe for every number of passes, and what was found as a table."""
    from objectseeker.cli._tuning_tables import render_recipes, save_recipes
    from objectseeker.core.recipes import parse_recipe
    from objectseeker.metrics.recipe_search import search_recipes

    with StageProgress() as stages:
        found = search_recipes(
            run,
            search,
            passes,
            recipes=[parse_recipe(one) for one in masks],
            processes=processes,
            on_progress=stages.update,
        )
    defenses = {
        one.budget: replace(run.defense(*one.tuning.chosen), masks=one.candidate.recipe)
        for one in found.chosen
        if run.manifest.detector_spec is not None
    }
    files = {}
    if out is not None:
        save_recipes(out, found)
        for budget, defense in defenses.items():
            files[budget] = out / ("defense.json" if len(set(passes)) == 1 else f"defense-{budget}.json")
            defense.save(files[budget])
        _warn_without_plots()
    if as_json:
        described = {str(budget): defense.to_public_dict() for budget, defense in defenses.items()}
        print_json(found.to_dict() | {"defenses": described})
        return
    _print(render_recipes(found))
    for budget, file in files.items():
        stdout_console.print(f"The defense for at most {budget} passes: {escape(str(file))}")
    how = "save it with --out and observe" if defenses else "observe with it"
    if files:
        how = f"observe again with --defense {next(iter(files.values()))}"
    observed = run.manifest.observation_settings.masks
    stdout_console.print(f"Estimated from the run's views, whose masks are {observed}; to certify it, {escape(how)}")


class StageProgress:
    """A bar for the stage that is under way."""

    def __init__(self) -> None:
        self._stack, self._what = ExitStack(), ""

    def __enter__(self) -> StageProgress:
        return self

    def update(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._stack.close()
            self._what, self._bar = what, self._stack.enter_context(progress(what, total))
        self._bar.update(done, total)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _print(parts: list[Any]) -> None:
    for part in parts:
        stdout_console.print(escape(part) if isinstance(part, str) else part)


def _warn_without_plots() -> None:
    from objectseeker.report import plots

    note = plots.unavailable_reason()
    if note is not None:
        warn(note)
