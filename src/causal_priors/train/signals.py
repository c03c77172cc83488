"""Stop requests: a handler that only sets a flag, for a loop that looks at it between steps."""

import signal
from types import FrameType


class StopRequest:
    """Context manager that turns SIGTERM and SIGINT into `received`, the signal's number (0: none yet).

    The handlers before it are put back on leaving.
    """

    def __init__(self) -> None:
        self.received = 0

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    @property
    def name(self) -> str:
        """The signal's name, as SIGTERM."""
        return signal.Signals(self.received).name
