"""The one error a user is meant to read.

Anything a person can cause (a typo, a damaged file, a full disk) is raised as `UserError`, whose text names the file,
the key, the value and the remedy. The command line prints it in one line and exits with 2; every other exception is a bug.
"""

from pathlib import Path


class UserError(Exception):
    """A mistake or a fault outside the program, told in one line."""


def refuse(
    problem: str,
    *,
    file: str | Path | None = None,
    key: str | None = None,
    value: object = ...,
    remedy: str = "",
) -> UserError:
    """Build a `UserError` reading `file: key = value: problem; remedy`.

    Returns the error, so that the caller's `raise refuse(...)` shows control flow to readers and type checkers.
    """
    parts = [] if file is None else [str(file)]
    if key is not None:
        parts.append(key if value is ... else f"{key} = {value!r}")
    elif value is not ...:
        parts.append(repr(value))
    text = ": ".join([*parts, problem])
    return UserError(f"{text}; {remedy}" if remedy else text)
