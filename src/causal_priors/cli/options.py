"""What the groups of commands share: common options, the scale, and the signature of a command."""

import argparse
import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from causal_priors.scale import Scale
    from causal_priors.study import Study

Command = Callable[[argparse.Namespace], None]
# How argparse says that a word is none of those that it knows.
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Add(Protocol):
    """Adds a command by name, with what it runs and its one line of help; returns its parser for the options."""

    def __call__(self, name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        """Return the parser of the new command."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line with its remedy, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit."""
        match = _CHOICE.search(message)
        close = difflib.get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), n=1) if match else []
        remedy = f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
        self.exit(2, f"error: {message.partition(' (choose from')[0]}; {remedy}\n")


def texts_options(sub: argparse.ArgumentParser) -> None:
    """Add where the texts are."""
    sub.add_argument("--texts", type=Path, required=True, help="folder of .txt, .jsonl(.gz) or .parquet files")
    sub.add_argument("--text-column", default="text", help="column or field that holds the text")


def scale_option(sub: argparse.ArgumentParser) -> None:
    """Add `--scale`."""
    sub.add_argument("--scale", default="micro", help="nano, micro, mini or paper")


def study_options(sub: argparse.ArgumentParser) -> None:
    """Add `--scale` and the folder of the register."""
    scale_option(sub)
    sub.add_argument("--preregistration", default="preregistration", help="folder of the sealed protocols")


def results_option(sub: argparse.ArgumentParser) -> None:
    """Add the folder under which each scale has its own."""
    sub.add_argument("--results", type=Path, default=Path("results"), help="folder of all studies (default: results)")


def positive(text: str) -> float:
    """Read a number above zero."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def whole(text: str) -> int:
    """Read a whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above zero")
    return value


def natural(text: str) -> int:
    """Read a whole number, zero or above."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return value


def packed_option(sub: argparse.ArgumentParser) -> None:
    """Add `--packed`."""
    sub.add_argument("--packed", action="store_true", help="allow evaluation blocks across document borders")


def scale_of(options: argparse.Namespace) -> "Scale":
    """Return the scale that `--scale` names. Raises `UserError`."""
    from causal_priors.config import load_scale, scale_file

    return load_scale(scale_file(options.scale))


def study_of(options: argparse.Namespace) -> "Study":
    """Return the study that the options name: the default config, but its scale, register and results.

    Arms of one's own are left out, since loading one executes it. Raises `UserError`.
    """
    from causal_priors.config import ROOT
    from causal_priors.errors import refuse
    from causal_priors.study import load_study
    from causal_priors.yamlfile import load_yaml

    for key in ("results", "preregistration"):
        if os.path.isfile(given := getattr(options, key)):  # noqa: PTH113
            raise refuse("is a file, not a folder", key=f"--{key}", value=str(given), remedy="name the folder")
    file = ROOT / "workflow" / "config" / "config.yaml"
    chosen = {key: str(getattr(options, key)) for key in ("scale", "preregistration", "results")}
    return load_study({**load_yaml(file), **chosen, "arms": []}, file)
