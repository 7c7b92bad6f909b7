"""`ekiden rpc`: keys, servers, trackers and proxies of sessions with other machines."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping

from ekiden.cli.options import parse_host_port
from ekiden.compiler.export.rpc_server import build_server
from ekiden.rpc import Proxy, Server, Tracker, make_key
from ekiden.runtime.errors import InputError

FILE_WRITING_ACTIONS = ("keygen", "build")
SERVING_ACTIONS = ("server", "tracker", "proxy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "what",
        choices=(*FILE_WRITING_ACTIONS, *SERVING_ACTIONS),
        help="write a file, or serve until interrupted",
    )
    parser.add_argument(
        "file", nargs="?", help="the file to write: a key file (keygen) or ekiden-rpc (build)"
    )
    parser.add_argument(
        "--machine", default="", help="the machine to build for: aarch64, armv7, ..."
    )
    parser.add_argument("--cc", help="the C compiler (default: one for the machine)")
    parser.add_argument("--static", action="store_true", help="link libc statically")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=9090, help="its port, 0 for any (9090)")
    parser.add_argument("--key", default="", help="the name of the device")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="the tracker to register at")
    parser.add_argument("--via", metavar="HOST:PORT", help="the proxy to wait at for clients")
    parser.add_argument("--credentials", metavar="FILE", help="the key file that both sides share")


def run(options: argparse.Namespace) -> int:
    """Write a key or a program, or serve. Raises InputError for a missing or superfluous file."""
    if (options.file is None) == (options.what in FILE_WRITING_ACTIONS):
        raise InputError(
            f"rpc {options.what}: expected {'a' if options.file is None else 'no'} file"
        )
    if options.what == "keygen":
        make_key(options.file)
        print(f"{options.file}: give it to both sides, and to nobody else")
        return 0
    if options.what == "build":
        extra = ["-static"] if options.static else []
        build_server(options.file, options.machine, cc=options.cc, options=extra)
        return 0
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    service = _SERVER_STARTERS[options.what](options)
    print(f"{options.what} on {service.host}:{service.port}", flush=True)
    service.wait()
    return 0


def _start_server(options: argparse.Namespace) -> Server:
    tracker = None if options.tracker is None else parse_host_port(options.tracker)
    host, port = (
        (options.host, options.port) if options.via is None else parse_host_port(options.via)
    )
    return Server(
        host, port, port + 1, options.via is not None, tracker, options.key,
        credentials=options.credentials,
    )  # fmt: skip


def _start_tracker(options: argparse.Namespace) -> Tracker:
    return Tracker(options.host, options.port, options.port + 1, credentials=options.credentials)


def _start_proxy(options: argparse.Namespace) -> Proxy:
    tracker = None if options.tracker is None else parse_host_port(options.tracker)
    return Proxy(
        options.host, options.port, options.port + 1, tracker_addr=tracker,
        credentials=options.credentials,
    )  # fmt: skip


_SERVER_STARTERS: Mapping[str, Callable[[argparse.Namespace], Server | Tracker | Proxy]] = {
    "server": _start_server,
    "tracker": _start_tracker,
    "proxy": _start_proxy,
}
