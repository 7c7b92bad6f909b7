"""Devices of a machine whose sessions stand behind walls."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rpc_functions import CServer

import ekiden
from ekiden import relay, rpc
from ekiden.runtime import library_path


@pytest.fixture(params=["server", "c"])
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Servers of both kinds, on a machine that has an OpenCL driver."""
    if not ekiden.opencl(0).exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")
    if request.param == "server":
        server = rpc.Server(port=0, key="board")
        yield server.port
        server.terminate()
        return
    monkeypatch.setenv("EKIDEN_DRIVERS", os.path.dirname(library_path()))
    program = CServer(request.getfixturevalue("program"))
    yield program.port
    program.terminate()


def test_session_has_its_device(port: int, tmp_path: Path) -> None:
    """Its driver was opened before the last wall closed. A compiler of its driver's that starts
    other programs fails, and the error says why; one that does not, runs.
    """
    x = relay.var("x", shape=(4, 4))
    model = ekiden.IRModule.from_expr(relay.Function([x], relay.tanh(x)))
    ekiden.export(model, tmp_path / "net.eki", "opencl")
    ones = np.ones((4, 4), "float32")
    with rpc.connect("127.0.0.1", port, "board") as session:
        assert session.listdir() == ""
        assert session.cl(0).exist and not session.cl(99).exist
        there = ekiden.nd.array(ones, session.cl(0))
        np.testing.assert_array_equal(there.numpy(), ones)
        session.upload(tmp_path / "net.eki")
        try:
            result = session.load_module("net.eki")["main"](there)
        except rpc.RPCError as error:
            assert "in the sandbox of a session a compiler starts no other programs" in str(error)
        else:
            assert isinstance(result, rpc.RemoteTensor)
            np.testing.assert_allclose(result.numpy(), np.tanh(ones), rtol=1e-5)
