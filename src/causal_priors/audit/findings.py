"""What an audit found: links of the chain, each with what is broken, what could not be checked, and why.

Three outcomes: sound, broken, cannot tell. A file that is not there is not a forgery, and not a proof either. What no
file can show (that weights came out of training) is said every time, with the command that would show it, and decides
nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from causal_priors.errors import UserError

SOUND, BROKEN, CANNOT_TELL = 0, 1, 2
WORDS = {SOUND: "sound", BROKEN: "broken", CANNOT_TELL: "cannot tell"}
# Findings of one link that are printed one by one; the rest are counted (and all are in the JSON).
_SHOWN = 12


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or that could not be checked: where, what, and the command or step that helps."""

    file: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.file, self.problem) if part)
        return f"{text}; {self.remedy}" if self.remedy else text


@dataclass
class Link:
    """One link of the chain. checked: things that were compared; broken and missing: what came out wrong or was absent."""

    name: str
    checked: int = 0
    broken: list[Finding] = field(default_factory=list)
    missing: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> int:
        """Sound, broken or cannot tell."""
        return BROKEN if self.broken else CANNOT_TELL if self.missing else SOUND

    def expect(self, holds: bool, file: object, problem: str, remedy: str = "") -> bool:
        """Count one comparison; record `problem` where it does not hold. Returns `holds`."""
        self.checked += 1
        if not holds:
            self.broken.append(Finding(str(file), problem, remedy))
        return holds

    def absent(self, file: object, problem: str, remedy: str = "") -> None:
        """Record what could not be checked."""
        self.missing.append(Finding(str(file), problem, remedy))

    def fail(self, error: UserError) -> None:
        """Record an error, which names its file and remedy."""
        self.checked += 1
        self.broken.append(Finding("", str(error)))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an error about a file, which names it and its remedy, into something broken."""
        try:
            yield
        except UserError as error:
            self.fail(error)


@dataclass
class Report:
    """All links, in the order of the chain, what no file can show, and remarks for readers."""

    folder: str
    scale: str
    links: list[Link] = field(default_factory=list)
    beyond: list[Finding] = field(default_factory=list)
    amendments: list[str] = field(default_factory=list)

    def link(self, name: str) -> Link:
        """Add a link and return it."""
        self.links.append(Link(name))
        return self.links[-1]

    @property
    def outcome(self) -> int:
        """The exit code: 0 sound, 1 broken, 2 cannot tell."""
        outcomes = {link.outcome for link in self.links}
        return BROKEN if BROKEN in outcomes else CANNOT_TELL if CANNOT_TELL in outcomes else SOUND

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        links = [{**asdict(link), "outcome": WORDS[link.outcome]} for link in self.links]
        return {**asdict(self), "links": links, "outcome": WORDS[self.outcome], "exit_code": self.outcome}

    def text(self) -> str:
        """The report for a terminal."""
        width = max(len(link.name) for link in self.links)
        lines = [f"Audit of {self.folder} (scale {self.scale})", ""]
        for link in self.links:
            wrong = f", {len(link.broken)} broken" if link.broken else ""
            absent = f", {len(link.missing)} not checked" if link.missing else ""
            lines.append(f"  {link.name:<{width}}  {link.checked:>6} checked{wrong}{absent}")
            lines += [f"  {'':<{width}}  {note}" for note in link.notes]
        lines += self._list("Broken", lambda link: link.broken)
        lines += self._list("Not checked, for want of what it needs", lambda link: link.missing)
        lines += ["", "What no file can show:", *(f"  {finding}" for finding in self.beyond)]
        if self.amendments:
            lines += ["", "Amendments:", *(f"  {text}" for text in self.amendments)]
        return "\n".join([*lines, "", self._closing()]) + "\n"

    def _list(self, title: str, of: Callable[[Link], list[Finding]]) -> list[str]:
        lines = []
        for link in self.links:
            found = of(link)
            lines += [f"  {link.name}: {finding}" for finding in found[:_SHOWN]]
            lines += [f"  {link.name}: and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return ["", f"{title}:", *lines] if lines else []

    def _closing(self) -> str:
        broken = [link.name for link in self.links if link.outcome == BROKEN]
        missing = [link.name for link in self.links if link.missing]
        if broken:
            return f"broken: {', '.join(broken)}"
        if missing:
            return (
                f"cannot tell: nothing that was checked is broken, but not all could be checked ({', '.join(missing)})"
            )
        return "sound: every link was checked and holds"
