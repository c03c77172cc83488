"""Jobs that start warm: one process with the heavy libraries loaded, which forks a child for each job.

Importing PyTorch costs two of the ten seconds of a job at micro scale. The Snakefile starts `python -m
causal_priors.warm SOCKET` beside its driver; a stage that needs tensors hands its command line over and then only stands
for the child: streams, folder, environment, signals and exit status are the job's own. Libraries alone are loaded ahead;
the project's code is read anew by each child, so an edit between two jobs counts.

Nothing but time depends on it. A job starts cold where no such process is, where it is not of the same driver (a cluster's
job on the same machine), and where interpreter, search path, limits, priority or cores differ. Linux only.
"""

import atexit
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

VARIABLE = "CAUSAL_PRIORS_WARM"
STAGES = frozenset({"train", "evaluate", "intervene", "control"})
# Variables with these beginnings are read when a library loads.
_READ_BY_LIBRARIES = ("OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOTO_", "TORCH", "PYTORCH", "ARROW_", "CUDA_", "ATEN_")
_LIBRARIES = ("torch", "numpy", "pyarrow.parquet", "safetensors.torch", "yaml", "jsonschema")
_TUNABLES, _LARGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_LARGEST_REQUEST = 1 << 17
_SECONDS_TO_ASK = 10.0
# The driver's end of the pipe whose closing ends the warm process.
_lifeline: int | None = None


def start(log: str | Path) -> None:
    """Start a warm process for the jobs of this process, the driver; it ends when the driver does.

    log: file for one line a job, which says how it starts.
    """
    global _lifeline
    if not (hasattr(os, "pidfd_open") and hasattr(socket, "SO_PEERCRED")):
        return
    address = Path(tempfile.mkdtemp(prefix="causal-priors-")) / "warm"
    read, _lifeline = os.pipe()
    # In a session of its own, so that Ctrl-C reaches jobs once, by way of what stands for them.
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        command = [sys.executable, "-m", __name__, str(address)]
        subprocess.Popen(
            command, stdin=read, stdout=output, stderr=output, start_new_session=True, env=_with_large_pages(os.environ)
        )
    os.close(read)
    os.environ[VARIABLE] = str(address)


def _with_large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Let glibc ask for large pages, which spares a training step at micro scale a few percent. Others ignore it.

    It is read when a process starts, so that a job can be given it only by what it is forked from.
    """
    given = environment.get(_TUNABLES, "")
    if _LARGE_PAGES.partition("=")[0] in given:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (given, _LARGE_PAGES)))}


def hand_over(arguments: Sequence[str]) -> int | None:
    """Run the command line in a child of the warm process and return its exit code; None: start cold."""
    address = os.environ.get(VARIABLE)
    if not address or STAGES.isdisjoint(arguments) or _in_team(arguments):
        return None
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(address)
        environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
        request = {"arguments": list(arguments), "folder": str(Path.cwd()), "environment": environment, **_setting()}
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        child = json.loads(connection.recv(_LARGEST_REQUEST) or b"null")
    except (OSError, ValueError):
        return None
    if child is None:
        return None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _forward(child, number))
    status = connection.recv(_LARGEST_REQUEST)
    if not status:
        print("error: the process that jobs start from is gone; the same command starts again", file=sys.stderr)
        return 1
    code = int(status)
    if code < 0:
        # The child ended by a signal: end the same way.
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _in_team(arguments: Sequence[str]) -> bool:
    """Whether this process is one of several that train one run, or will start them."""
    options = dict(pairwise(arguments))
    return "RANK" in os.environ or options.get("--processes", "1") != "1"


def _forward(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


def _setting() -> dict[str, Any]:
    """What a child inherits from the process it is forked from, and therefore must be equal to start warm."""
    umask = os.umask(0)
    os.umask(umask)
    limits = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
    return {
        "python": [sys.executable, *sys.path],
        "limits": [list(resource.getrlimit(limit)) for limit in limits],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": sorted(os.sched_getaffinity(0)),
        "umask": umask,
    }


def serve(address: str) -> None:
    """Fork a child for each request on the socket `address` until standard input ends."""
    driver, loaded = os.getppid(), None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is listener:
                    loaded = _take(listener, selector, driver, loaded)
                else:
                    selector.unregister(key.fileobj)
                    _report(*key.data)


def _take(
    listener: socket.socket, selector: selectors.BaseSelector, driver: int, loaded: dict[str, str] | None
) -> dict[str, str] | None:
    """Fork a child for one request, or close the connection. loaded: the variables that the libraries were loaded with."""
    connection, _ = listener.accept()
    connection.settimeout(_SECONDS_TO_ASK)
    streams: Sequence[int] = ()
    try:
        text, streams, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
        request = json.loads(text)
        read = {key: value for key, value in request["environment"].items() if key.startswith(_READ_BY_LIBRARIES)}
        peer = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        differing = [key for key, value in _setting().items() if request[key] != value]
        differing += [] if _descends(peer, driver) else ["driver"]
        differing += [] if loaded in (None, read) else ["environment"]
        if differing or len(streams) != 3:
            raise ValueError(f"another {', '.join(differing)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"cold: {error}", flush=True)
        connection.close()
    else:
        if loaded is None:
            _load(read)
            loaded = read
        connection.settimeout(None)
        print(f"warm: {' '.join(request['arguments'])}", flush=True)
        child = os.fork()
        if child == 0:
            listener.close()
            selector.close()
            _be(request, streams, connection)
        handle = os.pidfd_open(child)
        selector.register(handle, selectors.EVENT_READ, (handle, child, connection))
        _send(connection, child)
    for stream in streams:
        os.close(stream)
    return loaded


def _load(environment: dict[str, str]) -> None:
    """Import the libraries, at the first job that needs them and with its variables."""
    for key in [key for key in os.environ if key.startswith(_READ_BY_LIBRARIES)]:
        del os.environ[key]
    os.environ.update(environment)
    for library in _LIBRARIES:
        import_module(library)
    gc.freeze()


def _be(request: dict[str, Any], streams: Sequence[int], connection: socket.socket) -> None:
    """In the child: become the job, and end with its exit code."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        threading.Thread(target=_stop_when_alone, args=(connection,), daemon=True).start()
        sys.argv = [sys.argv[0], *request["arguments"]]
        code = import_module("causal_priors.cli").main(request["arguments"])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            output.flush()
        os._exit(code)


def _stop_when_alone(connection: socket.socket) -> None:
    """Stop this job, as SIGTERM would, when the process that stands for it is gone."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _report(handle: int, child: int, connection: socket.socket) -> None:
    os.close(handle)
    _, status = os.waitpid(child, 0)
    _send(connection, os.waitstatus_to_exitcode(status))
    connection.close()


def _send(connection: socket.socket, number: int) -> None:
    try:
        connection.send(str(number).encode())
    except OSError:
        # Who asked is gone; the child stops by itself.
        return


def _descends(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


if __name__ == "__main__":
    gc.set_threshold(1_000_000)
    try:
        serve(sys.argv[1])
    finally:
        if os.getpid() == os.getsid(0):
            shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)
