"""`detect` for a video: its options, what is said while it runs, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from objectseeker.cli._console import Bar, escape, notes, print_json, printed
from objectseeker.errors import ObjectSeekerError

if TYPE_CHECKING:
    from objectseeker.core.recipes import Recipe
    from objectseeker.core.seeker import ObjectSeeker
    from objectseeker.inference.defended_video import Lines, Sums
    from objectseeker.inference.encoding import VideoWriter
    from objectseeker.inference.frame_sources import Choice, Video
    from objectseeker.metrics import ThreatModel

LINES, PICTURES = "frames.jsonl", "annotated.mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOptions:
    """Which frames of a video."""

    stride: Annotated[int | None, typer.Option(help="Of a video: take every n-th frame.")] = None
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a video: begin here, in seconds or as h:mm:ss.")
    ] = None
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a video: stop before this, in seconds or as h:mm:ss.")
    ] = None
    fps: Annotated[float | None, typer.Option(help="Of a folder of frames: frames a second. Default: 25.")] = None

    def choice(self) -> Choice:
        from objectseeker.inference.frame_sources import Choice

        return Choice(
            stride=1 if self.stride is None else self.stride,
            start=0.0 if self.start is None else _seconds(self.start, "--start"),
            end=None if self.end is None else _seconds(self.end, "--end"),
        )

    def refuse(self) -> None:
        """They say nothing about images."""
        given = [f"--{field.name}" for field in fields(self) if getattr(self, field.name) is not None]
        if given:
            raise ObjectSeekerError(
                f"{', '.join(given)}: these are about videos; if the images of a folder are frames, write video:FOLDER"
            )


def video_in(inputs: list[str]) -> str | None:
    """The video among the inputs, if there is one: it is the only one then."""
    from objectseeker.inference.decoding import is_video

    videos = [given for given in inputs if is_video(given)]
    if videos and len(inputs) > 1:
        raise ObjectSeekerError("a video is detected in by itself: give it alone, with a folder of its own for --out")
    return videos[0] if videos else None


def refuse_rolling(masks: Recipe) -> None:
    """Images have no order that rolling masks could follow."""
    from objectseeker.core.recipes import Rolling

    if isinstance(masks, Rolling):
        raise ObjectSeekerError(
            f"{masks} shows each frame of a video only its share of the masks: give a video, or video:FOLDER if the "
            "images of a folder are frames in order"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Watching:
    """A video that is about to be looked at: everything that was asked for."""

    video: Video
    choice: Choice
    seeker: ObjectSeeker
    lines: Lines
    out: Path
    threat: ThreatModel | None
    about: dict[str, Any] | None
    annotate: bool
    names: tuple[str, ...]

    def run(self, *, as_json: bool) -> None:
        """Look at every frame, say how it went, and end as the program should."""
        from objectseeker.inference.defended_video import Sums

        sums, began = Sums(), time.monotonic()
        stopped = False
        try:
            self._go_through(sums)
        except KeyboardInterrupt:
            stopped = True
        except ObjectSeekerError as error:  # a full disk
            raise ObjectSeekerError(f"{error}; {sums.frames:,} frames are kept in {self.out}") from None
        if not (sums.frames or sums.failed or sums.cut_off or stopped):
            raise ObjectSeekerError(f"no frame of {self.video.name} is taken: --start is after its end")
        self._report(sums, time.monotonic() - began, stopped, as_json)
        if stopped:  # said on the way out, with exit code 130
            raise KeyboardInterrupt(f"{sums.frames:,} frames are kept in {self.out}.")
        if sums.failed or sums.cut_off:
            raise typer.Exit(1 if sums.frames else 2)

    def say_cost(self) -> None:
        from objectseeker.core.recipes import Rolling
        from objectseeker.runs.manifest import ObservationSettings

        views, why = ObservationSettings(self.seeker.masks).views_per_image()
        count = self._count
        if count is None:
            cost = f"{views:,} forward passes a frame, until {self.video.name} ends or Ctrl-C is pressed"
        else:
            cost = f"about {count:,} frames x {views:,} views = {count * views:,} forward passes"
        notes.print(escape(f"{why}: {cost}"))
        if isinstance(self.seeker.masks, Rolling) and (self.choice.stride > 1 or self.video.live):
            how = "of a live source" if self.video.live else f"with --stride {self.choice.stride}"
            notes.print(
                f"{how} frames are shown other shares of the masks than in a run of all frames: certificates over time "
                "of such a run are not about this"
            )

    @property
    def _count(self) -> int | None:
        """About how many frames there are to look at."""
        total = self.video.total
        return None if total is None else self.choice.count(total, self.video.rate)

    def _go_through(self, sums: Sums) -> None:
        from objectseeker.inference.defended_video import annotated, watch
        from objectseeker.inference.encoding import VideoWriter
        from objectseeker.inference.frame_sources import frames_of

        writer = VideoWriter(self.out / PICTURES, self.video.rate / self.choice.stride) if self.annotate else None
        with (
            lines_in(self.out) as lines,
            _closing(writer),
            _figures(self._count) as figures,
            closing(watch(self.seeker, frames_of(self.video, self.choice), threat=self.threat)) as stream,
        ):
            for watched in stream:
                _write(lines, self.lines.of(watched))
                sums.add(watched)
                if writer is not None and watched.found is not None:
                    frame = watched.frame
                    picture = annotated(frame.image, watched.found, self.names, self.threat)  # type: ignore[union-attr]
                    writer.add(picture, frame.time)  # type: ignore[union-attr]
                figures.show(sums)

    def _report(self, sums: Sums, seconds: float, stopped: bool, as_json: bool) -> None:
        from objectseeker.core.threats import PATCH_LOCATIONS
        from objectseeker.inference.images import ABOUT, CERTIFICATE, patch_words

        if as_json:
            counts = {name: sums.certified[name] for name in CERTIFICATE[:-1]}
            print_json(
                {
                    "video": self.video.name,
                    "frames": sums.frames,
                    "detections": sums.boxes,
                    "found_by_masks_only": sums.recovered,
                    "passes": sums.passes,
                    "seconds": round(seconds, 3),
                    **({"alerts": sums.flagged} if self.lines.alert else {}),
                    **({} if self.about is None else {"certificates": counts | self.about, "about": ABOUT}),
                    "failed": sums.failed,
                    "reasons": sums.reasons,
                    "cut_off": sums.cut_off or None,
                    "stopped": stopped,
                    "out": str(self.out),
                    "defense": self.lines.defense,
                }
            )
        else:
            printed.print(f"{sums.boxes} boxes in {sums.frames} frames, {sums.recovered} of them found by masking only")
            rate, passes = _rates(sums, seconds)
            printed.print(f"{rate:.3g} frames a second, {passes:.4g} passes a frame")
            if self.threat is not None and self.about is not None:
                for where in PATCH_LOCATIONS:
                    printed.print(f"certified {where}: {sums.certified[where]} of {sums.boxes} boxes")
                printed.print(
                    f"{sums.certified['vacuous_far']} boxes have no far position and count as certified there; all "
                    f"against {patch_words(self.threat)}, T = {self.about['certification_threshold']:g}, "
                    "each frame by itself"
                )
                printed.print(ABOUT)
            if self.lines.alert:
                printed.print(f"{sums.flagged} of {sums.frames} frames flagged")
            written = [LINES, *([PICTURES] if self.annotate and sums.frames else []), "defense.json"]
            printed.print(f"Written to {escape(str(self.out))}: {', '.join(written)}")
        for reason in (*sums.reasons, *([sums.cut_off] if sums.cut_off else [])):
            notes.print(f"[bold yellow]skipped:[/] {escape(reason)}")
        if sums.failed > len(sums.reasons):
            notes.print(f"and {sums.failed - len(sums.reasons):,} more frames, see {LINES}")


def require_free(out: Path) -> None:
    """Nothing that was done before is written over."""
    for name, what in ((LINES, "a video"), ("progress.jsonl", "images")):
        if (out / name).exists():
            raise ObjectSeekerError(f"{out} holds results of {what}: use another folder, or remove it")


@contextmanager
def lines_in(out: Path) -> Iterator[TextIO]:
    """The file of lines, which must not be there yet; one that stays empty is removed."""
    file = out / LINES
    try:
        stream = file.open("x", encoding="utf-8")
    except FileExistsError:
        raise ObjectSeekerError(f"{out} holds results of a video: use another folder, or remove it") from None
    try:
        with stream:
            yield stream
    finally:
        if file.stat().st_size == 0:
            file.unlink()


def _write(stream: TextIO, line: dict[str, Any]) -> None:
    """One line, with the system before the next frame is begun."""
    try:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
    except OSError as error:
        raise ObjectSeekerError(f"cannot write {LINES}: {error.strerror}") from None


@contextmanager
def _closing(writer: VideoWriter | None) -> Iterator[None]:
    try:
        yield
    finally:
        if writer is not None:
            writer.close()


class _Figures:
    """Frames a second, passes a frame and what masking found, while it runs; in a log, a line every minute."""

    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar, self._task = bar, bar.add_task("detecting", total=total)
        self._line, self._began = Bar(bar, self._task), time.monotonic()

    def show(self, sums: Sums) -> None:
        rate, passes = _rates(sums, time.monotonic() - self._began)
        text = f"{rate:.3g}/s, {passes:.4g} passes a frame, {sums.recovered:,} boxes by masks only"
        self._bar.update(self._task, description=text)
        self._line.advance()


@contextmanager
def _figures(total: int | None) -> Iterator[_Figures]:
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if total else ()),
    )
    with Progress(*columns, console=notes, transient=True, disable=notes.quiet or not notes.is_terminal) as bar:
        yield _Figures(bar, total)


def _rates(sums: Sums, seconds: float) -> tuple[float, float]:
    """Frames a second and passes a frame."""
    return sums.frames / seconds if seconds else 0.0, sums.passes / sums.frames if sums.frames else 0.0


def _seconds(text: str, option: str) -> float:
    """Seconds, or h:mm:ss."""
    try:
        parts = [float(part) for part in text.split(":")]
        if len(parts) > 3 or not all(0 <= part < float("inf") for part in parts):
            raise ValueError
    except ValueError:
        raise ObjectSeekerError(f"{option} is a time in seconds or as h:mm:ss, got {text[:80]!r}") from None
    return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))
