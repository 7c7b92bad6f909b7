"""Ways to run what was compiled: in this process, from a file, in another process, far away,
from C.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from helper_process import HelperProcess, ProcessEndedError
from matrix_axes import Built
from matrix_programs import ENGINE, STATE, Argument
from program_scope import LIBRARY
from sessions import ExecutableSession, GraphSession, Session, TensorSession

import ekiden
from comparison import Array, flatten
from ekiden import rpc, runtime
from ekiden.ir.dtype import to_numpy
from ekiden.runtime.devices.engines import engine_folder
from ekiden.runtime.errors import RPCSessionTimeoutError

HERE = Path(__file__).parent
TIMEOUT_S = 200
"""Seconds after which another process hangs: a kernel of OpenCL takes seconds to compile."""
SESSION_USES = 50
"""Cells that share a session: its server holds what they loaded until it ends."""
SESSION_ATTEMPTS = 3
Calls = Sequence[Sequence[Argument]]
Results = list[list[Array]]


@dataclass
class Resources:
    """What the cells of a process share: a folder, the program in C, a Python without a compiler, a
    session."""

    folder: Path
    c_program: Path
    """`run_calls`, compiled."""
    runner: HelperProcess = field(
        default_factory=lambda: HelperProcess(HERE / "run_file.py", (), {"PYTHONFAULTHANDLER": "1"})
    )
    """`run_file.py`."""
    _servers: list[rpc.Server] = field(default_factory=list)
    _sessions: list[rpc.RPCSession] = field(default_factory=list)
    _uses: int = 0
    _files: int = 0

    def path(self, suffix: str) -> Path:
        """Return a name that no file has yet."""
        self._files += 1
        return self.folder / f"model{self._files}{suffix}"

    def session(self) -> rpc.RPCSession:
        """Return an open session with a server of this machine."""
        self._uses += 1
        if not self._servers:
            self._servers.append(rpc.Server(port=0))
        if self._sessions and self._uses % SESSION_USES == 0:
            self.end_session()
        for _ in range(SESSION_ATTEMPTS):
            if not self._sessions:
                with suppress(RPCSessionTimeoutError):  # of a machine that has no time for it
                    self._sessions.append(rpc.connect("127.0.0.1", self._servers[0].port))
        return self._sessions[0]

    def end_session(self) -> None:
        """End the session, so that the next cell has another."""
        while self._sessions:
            self._sessions.pop().close()

    def close(self) -> None:
        """End the processes."""
        self.end_session()
        self.runner.close()
        for server in self._servers:
            server.terminate()


def compile_c_program(path: Path) -> None:
    """Compile run_calls.c against the installed runtime."""
    library = runtime.library_path()
    link = [str(library), f"-Wl,-rpath,{library.parent}"]
    source = str(HERE / "run_calls.c")
    command = ["cc", "-std=c11", f"-I{runtime.include_dir()}", source, *link, "-o", str(path)]
    subprocess.run(command, check=True)


def run_all(session: Session, calls: Calls) -> Results:
    """Return the results of each call as tensors in order."""
    return [flatten(session.run(args)) for args in calls]


def write(built: Built, resources: Resources, suffix: str) -> Path:
    """Write the executable to a file of a kind."""
    exe, path = built.executable, resources.path(suffix)
    assert exe is not None
    if suffix == ".eki":
        exe.save(path)
    elif suffix == ".tar":
        ekiden.export(exe, path)
    else:
        exe.export_library(path)
    return path


def open_session(built: Built, path: Path) -> Session:
    """Begin a session of what is in a file."""
    if not built.executor.is_graph:
        return ExecutableSession(ekiden.load(path))
    module = runtime.load_module(path)
    return GraphSession(module, module["get_executable"]().devices, built.program)  # type: ignore[attr-defined]


def in_process(built: Built, calls: Calls, resources: Resources) -> Results:
    """Call it where it was compiled."""
    return run_all(built.session(), calls)


def from_file(suffix: str) -> Callable[[Built, Calls, Resources], Results]:
    """Return the way through a file of a kind."""

    def run(built: Built, calls: Calls, resources: Resources) -> Results:
        """Write the file, load it, and run what is in it."""
        return run_all(open_session(built, write(built, resources, suffix)), calls)

    return run


def resumed(built: Built, calls: Calls, resources: Resources) -> Results:
    """Run the first call, and the others in a session from a file that goes on from its state."""
    first = built.session()
    results = [flatten(first.run(calls[0]))]
    state = pickle.loads(pickle.dumps(first.state()))
    second = open_session(built, write(built, resources, ".eki"))
    second.resume(state)
    return results + run_all(second, calls[1:])


def other_process(built: Built, calls: Calls, resources: Resources) -> Results:
    """Run all in another Python, which has no compiler."""
    path = write(built, resources, ".eki")
    task = (str(path), built.executor.is_graph, built.program.states, plain_calls(calls), STATE)
    try:
        answer: Results | tuple[str, str] = resources.runner.ask(task, TIMEOUT_S)
    except ProcessEndedError as error:
        raise OtherProcessError(error.code, str(error)) from error
    if isinstance(answer, tuple):
        raise OtherProcessError(1, ": ".join(answer))
    return answer


class OtherProcessError(Exception):
    """Another process ended with an error; its last line is the message."""

    def __init__(self, code: int, stderr: str) -> None:
        lines = stderr.strip().splitlines() or [""]
        super().__init__(lines[-1])
        self.code, self.stderr = code, stderr


def plain_calls(calls: Calls) -> list[list[object]]:
    """Return the calls with lists as nested (tag, fields), which other processes need no types
    for."""
    cons, nil = LIBRARY.get_type("List")[1:]

    def plain(arg: Argument) -> object:
        if not isinstance(arg, list):
            return arg
        value: object = (nil.tag, ())
        for item in reversed(arg):
            value = (cons.tag, (item, value))
        return value

    return [[plain(arg) for arg in args] for args in calls]


def by_rpc(built: Built, calls: Calls, resources: Resources) -> Results:
    """Send the file to a server and call it in a session, with tensors there."""
    path = write(built, resources, ".eki")
    remote = resources.session()
    try:
        remote.upload(str(path))
        module = remote.load_module(path.name)
        remote.remove(path.name)
        if built.executor.is_graph:
            assert built.executable is not None
            devices = [_far(remote, device) for device in built.executable.raw.devices]
            session: Session = GraphSession(module, devices, built.program)  # type: ignore[arg-type]
        else:
            host = remote.cpu()
            session = TensorSession(module["main"], built.program, host.array)
        return run_all(session, calls)
    except Exception:
        resources.end_session()  # an error may have left it as it should not be for another cell
        raise


def _far(remote: rpc.RPCSession, device: runtime.Device) -> object:
    return remote.device(device.type, device.device_id)  # type: ignore[arg-type]


def from_c(built: Built, calls: Calls, resources: Resources) -> Results:
    """Export a library, and call it from a program in C."""
    library, task = write(built, resources, ".so"), resources.path(".calls")
    answer = task.with_suffix(".results")
    states = built.program.states
    with open(task, "wb") as file:
        cons, nil = LIBRARY.get_type("List")[1:]
        file.write(struct.pack("qqq", cons.tag, nil.tag, len(calls)))
        for args in calls:
            inputs = [*args, *[STATE] * states]
            file.write(struct.pack("q", len(inputs)))
            for arg in inputs:
                _write_record(file, arg)
    assert built.executable is not None
    devices = built.executable.raw.devices if built.executor.is_graph else []
    numbers = [f"{device.device_type}:{device.device_id}" for device in devices]
    command = [resources.c_program, library, task, answer, str(states), *numbers]
    environment = {**os.environ, "EKIDEN_ENGINES": engine_folder(ENGINE)}
    done = subprocess.run(
        command, capture_output=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    if done.returncode != 0:
        raise OtherProcessError(done.returncode, done.stderr.decode(errors="replace"))
    with open(answer, "rb") as file:
        return [_read_leaves(file) for _ in calls]


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""Kind of a NumPy dtype -> DLPack's code."""


def _write_record(file: IO[bytes], arg: Argument) -> None:
    if isinstance(arg, list):
        file.write(b"L" + struct.pack("q", len(arg)))
        for item in arg:
            _write_record(file, item)
        return
    dtype = arg.dtype
    file.write(b"T" + struct.pack("BBB", _CODES[dtype.kind], dtype.itemsize * 8, arg.ndim))
    file.write(struct.pack(f"{arg.ndim}q", *arg.shape) + np.ascontiguousarray(arg).tobytes())


def _read_leaves(file: IO[bytes]) -> list[Array]:
    (count,) = struct.unpack("q", file.read(8))
    return [_read_tensor(file) for _ in range(count)]


def _read_tensor(file: IO[bytes]) -> Array:
    kind, code, bits, rank = struct.unpack("cBBB", file.read(4))
    assert kind == b"T"
    shape = struct.unpack(f"{rank}q", file.read(8 * rank))
    dtype = np.dtype("bool") if code == _CODES["b"] else np.dtype(to_numpy(_name(code, bits)))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(file.read(size), dtype).reshape(shape)


def _name(code: int, bits: int) -> str:
    return {0: "int", 1: "uint", 2: "float"}[code] + str(bits)


@dataclass(frozen=True)
class Way:
    """A row of WAYS."""

    name: str
    run: Callable[[Built, Calls, Resources], Results]


WAYS = (
    Way("in process", in_process),
    Way(".eki", from_file(".eki")),
    Way(".so", from_file(".so")),
    Way(".tar", from_file(".tar")),
    Way("other process", other_process),
    Way("RPC", by_rpc),
    Way("state resumed", resumed),
    Way("from C", from_c),
)
