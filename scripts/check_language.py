"""Check that code, web pages and documentation use the field's words, in plain American English.

    python scripts/check_language.py
    python scripts/check_language.py src/objectseeker/serve docs/guides/serve.md

Prints `FILE:LINE: PHRASE -> SUGGESTION` for every banned phrase or old identifier and for every docstring of src that
does not open with one sentence of at most 100 characters, and for every error message of src that does not say what to
do. Exits with 1 if it finds any. Phrases are found across line
breaks, comment signs and joined string literals. To keep a phrase in one file for a reason, add it to ALLOWED.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = (
    *("src", "scripts", "examples", "benchmarks", "train_builtin", "docs", "tests"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
SUFFIXES = {".py", ".js", ".html", ".css", ".md", ".ipynb"}
MAX_SUMMARY_LENGTH = 100

RATES = (
    r"(?:passes|boxes|alerts|alarms|seconds|views|masks|ms|s|mb|gb|kb|gflops?|bytes|objects|instants|positives|"
    r"pixels|tokens|detections|times|once|twice|copies|steps|lines|images|frames|gradients|windows|requests|pass|"
    r"\d|%|many|one|much|per cent)"
)

# Regular expressions over lowercase text; a space stands for any gap between two words. The first match wins.
PHRASES = {
    # American spelling
    r"colour\w*": "color",
    r"\w*grey\w*": "gray",
    r"neighbour\w*": "neighbor",
    r"centred?|centres": "center",
    r"\w*defences?": "defense",
    r"\w*labell(?:ed|ing)": "labeled, labeling",
    r"\w*recognis\w+": "recognize",
    r"(?:un|de|re)?(?:normal|union|summar|initial|optim|minim|maxim|organ|serial|visual)is(?:e[ds]?|ing)": "-ize",
    r"judgements?": "judgment",
    r"artefacts?": "artifact",
    r"behaviours?": "behavior",
    r"(?<!\.)cancelled": "canceled",
    # The field's words
    r"photographs?|photos?": "image",
    r"pictures?": "image; annotated image",
    r"wrong (?:base )?box(?:es)?": "false positive",
    r"invented box(?:es)?": "fabricated box (attack); spurious box (mask)",
    r"data sets?": "dataset",
    r"label-free|without regard to labels|labels ignored": "class-agnostic",
    r"without labels": "unlabeled; without annotations",
    r"label by label": "per class",
    r"want of memory": "out of memory",
    r"halves of characters": "lone surrogates",
    r"obeys": "interprets",
    r"sideways": "horizontally",
    r"naive way|naive loop": "naive implementation",
    r"paint(?:s|ed|ing)?(?: \w+)? over": "fill",
    r"(?:set|stands?|put) side by side": "compared; next to each other",
    r"views add up|views together": "views combine; evidence accumulates",
    r"decides? alone": "is sufficient on its own",
    r"explained by a base|explains? away": "filtered by a base box",
    r"surely": "guaranteed to",
    r"whole or not at all": "atomically",
    r"to the last bit|to the bit": "bit for bit; bit-identical",
    r"fault of ours": "internal error",
    r"truth boxes": "ground-truth boxes",
    # Rates
    RATES + r" an? (?:image|frame|second|view|batch|side|hour|minute|object|patch|class|track|window|step)": "per ...",
    # Verbs
    r"refus(?:e|es|ed|ing|al)": "reject; raise an error",
    r"left out|leav(?:e|es|ing) out": "skip (data); omit (options)",
    r"(?:is|are|was|were|be) looked at": "inspect; run detection on; evaluate",
    r"(?:detectors?|models?|networks?|graph|callable|view|function) gives?": "returns; produces",
    r"lies (?:in|beside|at|on|within|outside|where|next|below|above|under|between)": "is in; is at",
    r"stands? (?:for|beside)": "maps to; is listed with",
    r"(?:is|are) (?:said|told) of|speaks? of": "covers; applies to",
    r"(?:and|which) (?:says? so|is said)|says so": "and reports it; logs a warning",
    r"(?:is|are) gone through|going through": "iterate over",
    r"plays? (?:a|no) part|takes? part|taking part": "is used; is considered",
    r"puts? out": "outputs",
    r"holds? up": "block",
    r"goes on|go on|going on": "continues",
    r"passed on": "share; forward",
    r"cannot be told|can be told|tells? apart": "cannot be determined; distinguish",
    r"goes for|comes? to": "amounts to; applies to",
    r"makes? do": "suffices",
    # Turns of phrase
    r"beside": "next to; alongside; in addition to",
    r"nobody|somebody": "no one; or name the user, attacker, client",
    r"whoever|who trusts|who can write": "anyone who",
    r"by itself|by themselves": "on its own; separately",
    r"as (?:they are|it is)(?=[.,;:)])": "unchanged; unmodified",
    r"(?<!there\s)(?:is|are) no(?! longer| more| less| other| need| way| one)": "is not a",
    r"what is (?:asked|certified|observed)": "name the thing",
    r"asked for": "requested; required",
    r"wherever (?:it|they|the patch) lies?": "at any position",
    r"so many": "N; that many",
    r"that very|this very|the very": "exactly that; the same",
    r"one after (?:the other|another)": "sequentially; consecutive",
    r"a text(?! file| column| field)|texts": "a string",
    r"in a few words": "as text",
    r"in its own setting": "with its default settings",
    r"nothing is said|nobody says": "by default",
    r"by hand": "explicitly; manually",
    r"from which on": "at and above which",
    r"from (?:a |the |its |their )?(?:score|floor|score of|0?\.\d+|\{\w+\}) on": "at or above",
    r"what becomes? of|what became of": "the outcome for",
    r"at any moment": "at any time",
    r"your word that": "confirm that; assume",
    r"a detector of your own|an own": "your own",
    r"text that is not ours|texts? of others|not ours": "untrusted text",
    r"and nothing else": "only",
    r"remarks?": "caveats (results); warnings (log)",
    r"(?:one|two|three|four|clean|headline|certified|published|measured) figures?": "metric, number",
}

# Identifiers that were renamed (old: new).
IDENTIFIERS = {
    "base_score": "base_threshold",
    "mask_score": "mask_threshold",
    "low_score": "evidence_threshold",
    "low_alpha": "evidence_alpha",
    "low_beta": "evidence_beta",
    "tau_iou": "filter_iou",
    "wrong_boxes": "fppi",
    "label_free": "class_agnostic",
    "mask_by": "mask_mode",
    "to_json": "to_dict",
    "of_json": "from_dict",
    "of_coco": "from_coco",
    "of_supervision": "from_supervision",
    "of_fiftyone": "from_fiftyone",
    "in_words": "describe",
    "harmless": "escape_csv_cell",
    "write_whole": "write_atomic",
    "is_want_of_memory": "is_out_of_memory",
    "one_line": "sanitize_line",
    "bound_to": "with_fingerprint",
    "identity": "fingerprint",
    "identities": "fingerprints",
    "WHERES": "PATCH_LOCATIONS",
    "of_frame": "for_frame",
    "for_terminal": "render_terminal",
    "embedded-fast": "builtin-fast",
    "embedded-video": "builtin-video",
    "train_embedded": "train_builtin",
    "--base-score": "--base-threshold",
    "--mask-score": "--mask-threshold",
    "--low-score": "--evidence-threshold",
    "--wrong-boxes": "--fppi",
    "--mask-by": "--mask-mode",
    "--tau-iou": "--filter-iou",
    "--both-halves": "--cross-validate",
}

# What a file may say although it is banned, and why.
ALLOWED: dict[str, set[str]] = {
    "scripts/check_language.py": {"*"},  # the list itself
    "src/objectseeker/demo/samples/ATTRIBUTION.md": {"photo", "photograph", "photographs"},  # addresses
    "src/objectseeker/files/remote.py": {"there is no such file"},  # its callers say what to do
    "src/objectseeker/serve/limits.py": {"identity"},  # a content coding of HTTP
    "train_builtin/README.md": {"photos"},  # the name of a pack
    "train_builtin/augmentation.py": {"identity"},  # the identity matrix
    "train_builtin/label.py": {"photos"},  # the name of a pack
    "train_builtin/loss.py": {"harmless"},  # an adjective
}

# An error message says what to do: what must be so, or a verb of this list at the start of a clause.
ERRORS = ("ObjectSeekerError", "RequestRejectedError", "_bad_request")
REMEDIES = (
    "add|attack|change|check|choose|clip|compare|confirm|convert|copy|correct|create|cut|define|delete|draw|evaluate|"
    "export|find|fix|free|get|give|install|label|list|lower|make|mark|move|name|number|observe|omit|open|pair|pass|pick|"
    "put|raise|reduce|remove|rename|repair|replace|request|rerun|restore|resume|retrain|retry|return|run|save|say|score|"
    "search|select|send|set|shorten|show|skip|sort|split|start|state|take|train|try|tune|unpack|update|use|wait|write"
)
REMEDY = re.compile(
    r"\bmust\b|\bneeds?\b|\btakes\b|\brequires?\b|\bcan be\b|\bgate writes\b|\bpip install\b"
    r"|(?:[.:;,]|\bor|\band|\bthen|\binstead)\s+(?:" + REMEDIES + r")\b"
    r"|^(?:" + REMEDIES + r")\b|^cannot |\{(?:error|reason|advice|hint|message|problem|suggestion|known)\}|^\{",
    re.IGNORECASE,
)

QUESTION_WORDS = ("What", "Which", "How", "Whether", "Where", "When", "Who", "Whose", "Why")
GAP = r"(?:\s|\"\s+[rf]*\"|'\s+[rf]*'|\n\s*(?:#|//|\*|>))+"


def compile_phrase(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{phrase.replace(' ', GAP)})(?![\w-])")


PATTERNS = {compile_phrase(phrase): advice for phrase, advice in PHRASES.items()}
NAMES = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, IDENTIFIERS)) + r")(?![\w-])")


def find_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Iterate over the banned phrases and identifiers of a text: line, phrase, suggestion."""
    lower = text.lower()
    for pattern, advice in PATTERNS.items():
        for match in pattern.finditer(lower):
            yield lower.count("\n", 0, match.start()) + 1, " ".join(match.group().split()), advice
    for match in NAMES.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(), IDENTIFIERS[match.group()]


def find_summaries(source: str) -> Iterator[tuple[int, str, str]]:
    """Iterate over the docstrings of a module whose first line is not one sentence of the allowed length."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        line = node.body[0].lineno
        summary = docstring.splitlines()[0]
        if summary.split()[0].rstrip(",:") in QUESTION_WORDS:
            yield line, summary, "open with an imperative (function) or a noun phrase (class)"
        elif len(summary) > MAX_SUMMARY_LENGTH or not summary.endswith((".", ":")):
            yield line, summary, f"one sentence of at most {MAX_SUMMARY_LENGTH} characters on the first line"


def find_errors(source: str) -> Iterator[tuple[int, str, str]]:
    """Iterate over the error messages of a module that do not say what to do."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        if ast.unparse(node.exc.func) not in ERRORS:
            continue
        for argument in node.exc.args:
            if not isinstance(argument, ast.JoinedStr) and not isinstance(getattr(argument, "value", None), str):
                continue
            message = ast.unparse(argument).lstrip("f")[1:-1]
            if not REMEDY.search(message):
                yield node.lineno, message, "what is wrong: got VALUE. What to do."


def check_file(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    allowed = ALLOWED.get(name, set())
    text = path.read_text(encoding="utf-8")
    findings = [
        *find_phrases(text),
        *((*find_summaries(text), *find_errors(text)) if name.startswith("src/") and path.suffix == ".py" else ()),
    ]
    return [
        f"{name}:{line}: {phrase} -> {advice}"
        for line, phrase, advice in sorted(findings)
        if not allowed & {phrase, "*"}
    ]


def files(paths: list[Path]) -> list[Path]:
    """List the files to check: those named, and those with a known suffix in the folders named."""
    return [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file() and file.suffix in SUFFIXES and "_build" not in file.parts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: all that is checked)")
    options = parser.parse_args()
    checked = files([path.resolve() for path in options.paths] or [ROOT / path for path in PATHS])
    findings = [finding for file in checked for finding in check_file(file)]
    print("\n".join(findings), end="\n" if findings else "")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
