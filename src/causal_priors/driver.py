"""One driver (`snakemake`) at a time for the results of a scale, and no job that outlives its driver.

A driver that is killed leaves its jobs running; the next one would meet them as second writers. So each job waits in a
thread for the lock that its driver holds. It gets it when the driver is gone, however that ended, and then asks its own
process to stop: training saves at the next step boundary, other stages leave nothing half-written. Job and driver
share a kernel's lock (flock), so nothing is left to clean up.

That holds on the driver's own machine. Jobs that a batch system runs elsewhere are that system's: they go on without
their driver, since a login node is rebooted more often than a run of days ends, and since a file system that shows locks to
one machine only would make each of them believe that its driver is gone. Where a next driver submits a run that such
a job still trains, the run's own lock makes the second one wait.
"""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

from causal_priors.errors import refuse
from causal_priors.place import place
from causal_priors.progress import note

VARIABLE = "CAUSAL_PRIORS_DRIVER"
# Where the driver runs.
PLACE = "CAUSAL_PRIORS_DRIVER_PLACE"
LOCK = ".driver.lock"
_LOOK_AGAIN_SECONDS = 0.1


def claim(folder: str | Path) -> None:
    """Make this process the one driver of `folder` until it ends, and tell the jobs that it starts.

    Waits for the last jobs of a driver that was killed. Raises `UserError` where another driver is at work, and where
    the folder cannot be written or locked.
    """
    path = Path(folder).resolve() / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Left open: the lock lasts as long as the process.
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        said = False
        while not _taken(handle, fcntl.LOCK_EX):
            if not _taken(handle, fcntl.LOCK_SH):
                os.close(handle)
                raise refuse("another snakemake is at work here", file=folder, remedy="wait for it, or stop it first")
            fcntl.flock(handle, fcntl.LOCK_UN)
            if not said:
                note(f"{folder}: waiting for jobs of a stopped snakemake to save and end")
                said = True
            time.sleep(_LOOK_AGAIN_SECONDS)
    except OSError as error:
        raise refuse(f"cannot be written ({error.strerror})", file=path) from error
    os.environ[VARIABLE] = str(path)
    os.environ[PLACE] = place()


def follow() -> None:
    """Stop this process, as SIGTERM would, when the driver that started it is gone.

    Do nothing without a driver, nor where the driver handed the job to a batch system.
    """
    if not (path := os.environ.get(VARIABLE)) or os.environ.get(PLACE, place()) != place():
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        # A folder that this machine does not see.
        return
    threading.Thread(target=_stop_when_free, args=(handle,), daemon=True).start()


def _stop_when_free(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:
        return
    # The lock stays with this process, so that the next driver waits for its end.
    os.kill(os.getpid(), signal.SIGTERM)


def _taken(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
