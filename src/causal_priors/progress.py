"""Progress that suits both a person and a log: a bar on a terminal, else one plain line per interval.

Nothing here touches results: times are read, printed to stderr and forgotten.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

WIDTH = 24
# Seconds to the first line of a log: a job that takes half a minute is seen too.
FIRST = 5.0
_LINE = re.compile(
    r"(?P<label>[^:]+): \S+ (?P<done>[\d,]+)/(?P<total>[\d,]+) \(\d+%\)(?P<rest>.*?)"
    r"(?:, (?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d) left)?"
)


def note(text: str, stream: TextIO | None = None) -> None:
    """Print one line for the person who watches; stderr unless `stream` is given."""
    print(text, file=stream or sys.stderr, flush=True)


class Progress:
    """Count `unit`s up to `total` (None: unknown) under `label`. Use as a context manager.

    `done` units are taken as finished earlier (a resumed run): they count for the share, not for the rate. A line looks
    like `S-rope-L64-s0: step 120/300 (40%), loss 4.523, 51,200 tokens/s, 0:00:12 left`. On a terminal the line is
    redrawn in place five times a second; elsewhere it is printed after a few seconds, then every `interval` seconds, and
    once at the end.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        unit: str = "step",
        *,
        done: int = 0,
        interval: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.label, self.unit, self.done = total, label, unit, done
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty()
        self._interval = 0.2 if self._bar else interval
        self._wait = min(FIRST, self._interval)
        self._clock = clock
        self._began = self._shown = clock()
        self._first, self._tokens = done, 0
        self._fields: dict[str, float | str] = {}

    def update(self, amount: int = 1, *, tokens: int = 0, **fields: float | str) -> None:
        """Add `amount` units that took in `tokens` tokens; `fields` (loss, ...) are shown as last given."""
        self.done += amount
        self._tokens += tokens
        self._fields.update(fields)
        now = self._clock()
        if now - self._shown >= self._wait:
            self._shown, self._wait = now, self._interval
            self._show(now)

    def found(self, amount: int) -> None:
        """Add `amount` units that turn out to be finished earlier: they count for the share, not for the rate."""
        self._first += amount
        self.update(amount)

    def line(self, now: float) -> str:
        """Return the line as it would be printed at clock time `now`."""
        share = f"/{self.total:,} ({100 * self.done // self.total}%)" if self.total else ""
        parts = [f"{self.unit} {self.done:,}{share}"]
        parts += [f"{key} {_shown(value)}" for key, value in self._fields.items()]
        elapsed, worked = now - self._began, self.done - self._first
        if elapsed > 0 and worked > 0:
            if self.unit == "byte":
                parts.append(f"{worked / elapsed / 1e6:.1f} MB/s")
            if self._tokens or self.unit != "byte":
                count, unit = (self._tokens, "tokens") if self._tokens else (worked, self.unit)
                parts.append(f"{_rate(count / elapsed)} {unit}/s")
            if self.total and self.total > self.done:
                parts.append(f"{clock_text((self.total - self.done) * elapsed / worked)} left")
        return f"{self.label}: {', '.join(parts)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On a terminal an unfinished bar is closed too, so that an error message starts on a line of its own.
        if self._bar or kind is None:
            self._show(self._clock())
        if self._bar:
            self._stream.write("\n")
            self._stream.flush()

    def _show(self, now: float) -> None:
        text = self.line(now)
        if not self._bar:
            note(text, self._stream)
            return
        filled = WIDTH * self.done // self.total if self.total else 0
        # "\x1b[K" clears what a longer line left behind.
        self._stream.write(f"\r[{'#' * min(filled, WIDTH):{WIDTH}}] {text}\x1b[K")
        self._stream.flush()


@dataclass(frozen=True)
class Seen:
    """What a line of progress says. seconds_left: None where the line says none. rest: loss, rate, as printed."""

    label: str
    done: int
    total: int
    seconds_left: int | None
    rest: str


def read_line(text: str) -> Seen | None:
    """Return what `Progress.line` wrote, or None for any other line and for a count without a total."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    done, total = (int(match[key].replace(",", "")) for key in ("done", "total"))
    left = None
    if match["hours"] is not None:
        left = 3600 * int(match["hours"]) + 60 * int(match["minutes"]) + int(match["seconds"])
    return Seen(match["label"], done, total, left, match["rest"].removeprefix(", "))


def _shown(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clock_text(seconds: float) -> str:
    """Return `seconds` as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
