"""The one error a user is meant to read.

Anything a person can cause (a typo, a damaged file, a full disk) is raised as `UserError`, whose text names the file,
the key, the value and the remedy. The command line prints it in one line and exits with 2; every other exception is a bug.
"""

import re
from pathlib import Path

_LONGEST_VALUE = 300
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """A mistake or a fault outside the program, told in one line."""


def shown(value: object) -> str:
    """Return `value` as an error shows it: its `repr`, cut where that is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."


def refuse(
    problem: str,
    *,
    file: str | Path | None = None,
    key: str | None = None,
    value: object = ...,
    remedy: str = "",
) -> UserError:
    """Build a `UserError` reading `file: key = value: problem; remedy`.

    Returns the error, so that the caller's `raise refuse(...)` shows control flow to readers and type checkers. A long
    value is cut, and control characters (which a file's name may hold) are spelled out: an error is one short line.
    """
    parts = [] if file is None else [str(file)]
    if key is not None:
        parts.append(key if value is ... else f"{key} = {shown(value)}")
    elif value is not ...:
        parts.append(shown(value))
    text = ": ".join([*parts, problem])
    text = f"{text}; {remedy}" if remedy else text
    return UserError(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))
