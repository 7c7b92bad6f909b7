"""RPC sessions with other processes and machines: run there what was compiled here.

    server = rpc.Server(port=9090)                     on the other machine
    remote = rpc.connect("127.0.0.1", 9090)            here
    remote.upload("model.eki")
    y = remote.load_module("model.eki")["main"](ekiden.nd.array(x, remote.cpu()))

docs/rpc.md has the messages, docs/security.md what is trusted. Needs `ekiden.runtime` alone.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.rpc.client import LocalSession, PopenSession, RPCSession, connect
from ekiden.rpc.errors import FrameError, RPCError, RPCSessionTimeoutError
from ekiden.rpc.proxy import Proxy
from ekiden.rpc.remote import RemoteDevice, RemoteFunction, RemoteModule, RemoteObject, RemoteTensor
from ekiden.rpc.sandbox import Limits
from ekiden.rpc.server import Server
from ekiden.rpc.tls_keys import make_key
from ekiden.rpc.tracker import Tracker, TrackerSession, connect_tracker

__all__ = [
    "FrameError",
    "Limits",
    "LocalSession",
    "PopenSession",
    "Proxy",
    "RPCError",
    "RPCSession",
    "RPCSessionTimeoutError",
    "RemoteDevice",
    "RemoteFunction",
    "RemoteModule",
    "RemoteObject",
    "RemoteTensor",
    "Server",
    "Tracker",
    "TrackerSession",
    "connect",
    "connect_tracker",
    "make_key",
]
