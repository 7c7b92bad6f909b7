"""A server whose process has the functions of tests, and sessions with it and with this process."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rpc_functions import LIBRARIES, CServer, compile_functions

import ekiden
from ekiden import rpc
from ekiden.compiler.export.rpc_server import build_server
from ekiden.runtime import ADT, Shape
from shared_files import made_once


def fail(message: str) -> None:
    raise KeyError(message)


def fill(tensor: ekiden.Tensor, value: float) -> None:
    tensor.numpy()[:] = value


FUNCTIONS = {
    "echo": lambda *args: args[0] if args else None,
    "fail": fail,
    "adder": lambda x: lambda y: x + y,
    "apply": lambda function, *args: function(*args),
    "total": lambda tensor: float(tensor.numpy().sum()),
    "fill": fill,
    "zeros": lambda n: ekiden.nd.array(np.zeros(n, "float32")),
    "shape": lambda *sizes: Shape(sizes),
    "pid": os.getpid,
    "sleep": time.sleep,
    "tagged": lambda tag, *fields: ADT(tag, fields),
}


@pytest.fixture(scope="session", autouse=True)
def functions() -> None:
    for name, function in FUNCTIONS.items():
        ekiden.register_func(f"tests.rpc.{name}", function, override=True)


@pytest.fixture(scope="session")
def server(functions: None) -> Iterator[rpc.Server]:
    result = rpc.Server(port=0, key="board")
    yield result
    result.terminate()


@pytest.fixture(scope="session")
def functions_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "functions.so", compile_functions)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "ekiden-rpc", build_server)


@pytest.fixture(scope="session")
def c_server(program: Path) -> Iterator[CServer]:
    result = CServer(program)
    yield result
    result.terminate()


@pytest.fixture(params=["local", "server", "c"])
def remote(request: pytest.FixtureRequest) -> Iterator[rpc.RPCSession]:
    """A session with this process, a server of Python, and one of C."""
    if request.param == "local":
        session: rpc.RPCSession = rpc.LocalSession()
    else:
        name = {"server": "server", "c": "c_server"}[request.param]
        port = request.getfixturevalue(name).port
        session = rpc.connect("127.0.0.1", port, "board")
    with session:
        if request.param == "c":
            session.upload(request.getfixturevalue("functions_library"))
            LIBRARIES[session] = session.load_module("functions.so")
            session.remove("functions.so")
        yield session
        LIBRARIES.pop(session, None)


@pytest.fixture
def web_port() -> int:
    """A free one, where pages come."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def proxy(web_port: int) -> Iterator[rpc.Proxy]:
    """Where pages wait, and clients come."""
    result = rpc.Proxy(port=0, web_port=web_port)
    yield result
    result.terminate()
