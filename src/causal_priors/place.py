"""Where a process runs: on which machine, and as part of which batch job.

On a cluster the parts of one study share files and little else. A process id means nothing on another machine or in another
namespace of processes, and some shared file systems show a lock (flock) to the machine that holds it only.
"""

import os
import platform
from functools import cache
from hashlib import sha256
from pathlib import Path

# Batch systems' names for the number of a job, in the environment of what the job runs.
_JOB_NUMBERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def batch_job() -> str:
    """Return the number of the batch job that this process belongs to, "" outside one."""
    return next((number for name in _JOB_NUMBERS if (number := os.environ.get(name))), "")


def place() -> str:
    """Return what tells this machine and batch job from others: equal for a driver and for jobs that it runs itself."""
    return f"{_machine()}:{batch_job()}"


@cache
def process_space() -> str:
    """Return eight digits that are equal for two processes only where each sees the other's process id."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return sha256(f"{_machine()} {namespace}".encode()).hexdigest()[:8]


@cache
def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
