"""gate.html: one page that stands alone, in light and dark, on paper and on a phone. It runs no script."""

from __future__ import annotations

import base64
from html import escape
from importlib import resources

from objectseeker.gate.failure_images import Pictures
from objectseeker.gate.verdict_text import MARKS, behind, figure_of, in_short, why
from objectseeker.metrics.gate import Gate, Instance, Judgement
from objectseeker.metrics.policy import in_unit
from objectseeker.text import escape_invisible

PALETTE = resources.files("objectseeker").joinpath("report/web/palette.css").read_text(encoding="utf-8")
STYLE = """\
:root { --undecided: light-dark(#7a5a00, #e6c229); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 0; }
p { margin: .3rem 0; } .soft { color: var(--soft); font-size: .9rem; }
section { border: 1px solid var(--line); border-left: .4rem solid var(--mark); border-radius: 8px; padding: .7rem .9rem;
  margin: 1rem 0; background: var(--raised); break-inside: avoid; }
.mark { color: var(--mark); font-weight: 700; }
.pass { --mark: var(--yes); } .fail, .refuted { --mark: var(--no); } .undecided { --mark: var(--undecided); }
.bar { position: relative; height: 1.6rem; margin: .6rem .4rem 0; }
.bar::before { content: ""; position: absolute; inset: .75rem 0 auto; border-top: 2px solid var(--line); }
.bar span { position: absolute; }
.range { top: .3rem; height: 1rem; min-width: 2px; background: var(--mark); opacity: .4; border-radius: 3px; }
.limit { top: 0; height: 1.6rem; border-left: 2px dashed var(--ink); }
.value { top: .45rem; width: .7rem; height: .7rem; margin-left: -.35rem; border-radius: 50%; background: var(--mark); }
.ends { display: flex; justify-content: space-between; gap: 1rem; margin: 0; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: .6rem; }
figure { margin: 0; } img { width: 100%; height: auto; display: block; border-radius: 4px; }
figcaption { font-size: .85rem; color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); font-size: .9rem; }
summary { cursor: pointer; }
"""


def page_of(gate: Gate, pictures: Pictures) -> str:
    body = [
        f'<section class="{gate.verdict}"><h1>Release gate: <span class="mark">{MARKS[gate.verdict]}</span></h1>',
        f"<p>{_text(in_short(gate))}.</p>",
        *(f"<p>Refuted: {_text(certificate)}</p>" for certificate in gate.refuted),
        f'<p class="soft">A requirement passes if the worse end of its {100 * gate.policy.confidence:g} % interval is '
        "good enough, fails if even the better end is not, and is undecided in between. Intervals are over images."
        "</p></section>",
        *(_section(judgment, pictures) for judgment in gate.judgments),
        _about(gate),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src '
        "'unsafe-inline'\">\n"
        f"<title>Release gate: {MARKS[gate.verdict]}</title>\n<style>\n{PALETTE}{STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _section(judgment: Judgement, pictures: Pictures) -> str:
    asked = judgment.requirement
    parts = [
        f'<section class="{judgment.outcome}">',
        f'<h2><span class="mark">{MARKS[judgment.outcome]}</span> {_text(asked.name)}</h2>',
        "" if not asked.given_name else f"<p>{_text(asked.in_full())}</p>",
        _drawn(judgment),
        f"<p><b>{_text(figure_of(judgment))}</b></p>" if judgment.interval.known else "",
        f"<p>{_text(why(judgment))}</p>",
        f'<p class="soft">{_text(_measured_on(judgment))}</p>',
        _slices(judgment),
        _pictures(judgment, pictures),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _measured_on(judgment: Judgement) -> str:
    how = {"exact": "exact interval (Clopper-Pearson)", "bootstrap": "bootstrap over images (BCa)"}
    words = behind(judgment)
    return f"{words}; {how[judgment.interval.method]}" if words and judgment.interval.known else words


def _drawn(judgment: Judgement) -> str:
    """The interval, the figure and the limit on a line: of percents all of it, else as much as shows them."""
    interval, limit, unit = judgment.interval, judgment.limit, judgment.requirement.unit
    if not interval.known or limit is None:
        return ""
    low, high = (0.0, 100.0) if unit == "%" else (min(interval.low, limit, 0.0), max(interval.high, limit, 0.0))
    span = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - low) / span:.2f}%"

    width = f"{100 * (interval.high - interval.low) / span:.2f}%"
    shown = f"{figure_of(judgment)}, {judgment.requirement.limit_in_words()}"
    return (
        f'<div class="bar" role="img" aria-label="{_text(shown)}">'
        f'<span class="range" style="left:{at(interval.low)};width:{width}"></span>'
        f'<span class="limit" style="left:{at(limit)}"></span>'
        f'<span class="value" style="left:{at(interval.value)}"></span></div>'
        f'<p class="ends soft"><span>{_text(in_unit(low, unit))}</span><span>dashed: limit '
        f"{_text(in_unit(limit, unit))}</span><span>{_text(in_unit(high, unit))}</span></p>"
    )


def _slices(judgment: Judgement) -> str:
    if not judgment.slices:
        return ""
    rows = "".join(
        f'<tr><td>{_text(str(one.slice))}</td><td class="{one.outcome}"><span class="mark">{MARKS[one.outcome]}</span>'
        f"</td><td>{_text(figure_of(one))}</td><td>{_text(behind(one))}</td></tr>"
        for one in judgment.slices
    )
    head = "<tr><th>slice</th><th></th><th>figure</th><th>measured on</th></tr>"
    return f'<div class="scroll"><table>{head}{rows}</table></div>'


def _pictures(judgment: Judgement, pictures: Pictures) -> str:
    if not judgment.instances:
        return ""
    figures = "".join(_figure(instance, pictures.get(instance, "")) for instance in judgment.instances)
    opened = "" if judgment.outcome == "pass" else " open"
    words = "The largest objects" if judgment.instances[0].box else "Images"
    summary = f"<summary>{words} that speak against it</summary>"
    return f'<details{opened}>{summary}<div class="pictures">{figures}</div></details>'


def _figure(instance: Instance, picture: bytes | str) -> str:
    name = instance.image if instance.class_name is None else f"{instance.class_name} in {instance.image}"
    if isinstance(picture, bytes):
        shown = f'<img alt="{_text(name)}" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
    else:
        shown = f"<p>{_text(picture)}</p>"
    return f"<figure>{shown}<figcaption>{_text(name)}</figcaption></figure>"


def _about(gate: Gate) -> str:
    defense, run, files = (gate.about.get(name) or {} for name in ("defense", "run", "files"))
    rows = {
        "defense": defense.get("sha256"),
        "detector": defense.get("detector"),
        "masks": defense.get("masks"),
        "run": run.get("digest"),
        "dataset": run.get("dataset_identity"),
        "images": run.get("images"),
        "policy": files.get("policy"),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{_text(str(value))}</td></tr>" for name, value in rows.items() if value)
    return f'<details><summary>What was judged</summary><div class="scroll"><table>{cells}</table></div></details>'


def _text(text: str) -> str:
    return escape(str(escape_invisible(text)))
