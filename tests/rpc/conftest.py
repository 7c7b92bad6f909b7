"""A server whose process has the functions of tests, and sessions with it and with this process."""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

import ekiden
from ekiden import rpc
from ekiden.runtime import ADT, Shape


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
    made = rpc.Server(port=0, key="board")
    yield made
    made.terminate()


@pytest.fixture(params=["local", "server"])
def remote(request: pytest.FixtureRequest, server: rpc.Server) -> Iterator[rpc.RPCSession]:
    if request.param == "local":
        session: rpc.RPCSession = rpc.LocalSession()
    else:
        session = rpc.connect("127.0.0.1", server.port, "board")
    with session:
        yield session
