"""Server process: its sockets, start, and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol

import uvicorn

from ekiden.runtime import trim_pools
from ekiden.runtime.devices.memory import memory_bound, within_free_memory
from ekiden.runtime.errors import EkidenError, RequestError, ServeError
from ekiden.serve.config import ServerConfig, read_server_config
from ekiden.serve.connections import connection_class
from ekiden.serve.engine import ServingEngine
from ekiden.serve.grpc_service import start_grpc
from ekiden.serve.http import HttpApplication
from ekiden.serve.logs import LogForwarder
from ekiden.serve.security import TokenStore, check_exposure, exposure_warnings, tls_context
from ekiden.serve.text import AnyTextModel

__all__ = ["Server"]

IDLE_INTERVAL_S = 10.0
"""Seconds without requests after which memory that is kept for reuse goes back to the system."""
THREAD_SWITCH_INTERVAL_S = 0.0005
"""How long one thread may keep Python's lock: the default, 5 ms, is longer than most runs."""
SERVER_GC_THRESHOLDS = (10_000, 100, 50)
"""New objects until the first look for garbage, and looks until the next deeper one. A look at
10,000 objects takes 5 ms of the loop where all of them are garbage."""
M_MMAP_THRESHOLD = -3
"""The option's number in <malloc.h>."""
MAPPED_BUFFER_BYTES = 1 << 20
"""Buffers from this size on are mappings of their own. Shorter ones, such as the 256 KB of a read,
reuse memory of the heap without page faults."""


class Server:
    """Server of a model folder, in this process.

    server = Server("models", port=8000)
    server.run()  # until SIGTERM or SIGINT
    """

    def __init__(
        self, folder: str | Path, config: ServerConfig | None = None, **given: object
    ) -> None:
        """Configure a server: `config` is the whole configuration; by default that of
        `folder`/serve.toml with overrides by name. Raises ServeError for invalid settings.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ServeError(f"serve '{folder}': a folder of models expected")
        self.config = config or read_server_config(self.folder / "serve.toml", given)
        check_exposure(self.config)
        self._tls = tls_context(self.config)
        self._tokens = TokenStore(
            self.config.token_file, self.config.control_token_file, self.config.allow_control
        )
        self._texts: dict[str, AnyTextModel] = {}
        self._has_process = False
        """Whether the process is this server's alone."""
        self.port = self.grpc_port = 0
        """The ports, once it runs; 0 where there is none."""

    def add_text(self, name: str, model: AnyTextModel) -> None:
        """Serve a text model under a name."""
        self._texts[name] = model

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then until requests in flight have ended."""
        self._has_process = True
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
        raise_file_limit()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._run_until_signal())

    async def _run_until_signal(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await self.serve(stop)

    async def serve(self, stop: asyncio.Event, started: asyncio.Event | None = None) -> None:
        """Serve on the running loop until `stop` is set; `started` is set once requests are
        accepted. Raises ServeError if a port is taken, LoadError for a folder that cannot be
        served.
        """
        memory_limit = self.config.memory  # so that a request fails, and not the process
        with memory_bound(memory_limit) if memory_limit else within_free_memory():
            await self._serve_until_stopped(stop, started)

    async def _serve_until_stopped(
        self, stop: asyncio.Event, started: asyncio.Event | None
    ) -> None:
        engine = self.engine = ServingEngine(self.folder, self.config)
        logging.getLogger("uvicorn").handlers[:] = [LogForwarder(engine.log)]
        logging.getLogger("uvicorn").propagate = False
        # Bound before anything is loaded: a port in use fails at once.
        listener = _open_listener(self.config.host, self.config.port)
        self.port = listener.getsockname()[1]
        http = self._create_http_server(engine)
        over_grpc = await self._start_grpc(engine, listener)
        serving = asyncio.ensure_future(http.serve([listener]))
        polling = asyncio.ensure_future(self._load_and_poll(engine))
        engine.log.write(
            "info", "listening", host=self.config.host, port=self.port,
            grpc_port=self.grpc_port,
        )  # fmt: skip
        if engine.tracer.exporter_name:
            engine.log.write("info", "traces", exporter=engine.tracer.exporter_name)
        if what := exposure_warnings(self.config):
            engine.log.write("warning", "open", host=self.config.host, what=what)
        waiting = asyncio.ensure_future(stop.wait())
        idling = asyncio.ensure_future(_release_while_idle(engine))
        polling.add_done_callback(lambda done: _has_failed(done) and waiting.cancel())
        if started is not None:
            started.set()
        try:
            await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            polling.cancel()
            idling.cancel()
            await self._drain_and_stop(engine, http, serving, over_grpc)
        if _has_failed(polling):
            polling.result()  # raises it

    async def _start_grpc(self, engine: ServingEngine, listener: socket.socket) -> Stoppable | None:
        """Start the gRPC server; None if it is disabled. Raises ServeError."""
        if not self.config.grpc:
            return None
        port = self.config.grpc_port or (self.port + 1 if self.config.port else 0)
        try:
            grpc_server: Stoppable
            grpc_server, self.grpc_port = await start_grpc(engine, self._tokens, port)
        except ServeError:
            listener.close()
            raise
        return grpc_server

    async def _drain_and_stop(
        self,
        engine: ServingEngine,
        http: uvicorn.Server,
        serving: asyncio.Future[None],
        over_grpc: Stoppable | None,
    ) -> None:
        engine.log.write("info", "stopping", in_flight=engine.in_flight)
        has_drained = await engine.drain()
        if over_grpc is not None:
            await over_grpc.stop(0.0 if not has_drained else 1.0)
        # After draining: the HTTP server would close connections whose requests still run.
        http.should_exit = True
        if not has_drained:
            http.config.timeout_graceful_shutdown = 1
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        for connection in list(http.server_state.connections):
            connection.transport.abort()
        engine.close()
        engine.log.write("info", "stopped", drained=has_drained)

    async def _load_and_poll(self, engine: ServingEngine) -> None:
        """Load the models of the folder, then poll it at the configured interval."""
        for name, model in self._texts.items():
            engine.repository.add_text(name, model)
        for name in engine.repository.scan():
            with contextlib.suppress(RequestError):  # it is in the log and in the index
                await engine.repository.load_or_configure(name)
        engine.has_started = True
        # Collection settings are global; a server embedded in a program must not change them.
        if self._has_process:
            relax_gc()
            map_long_buffers()
        engine.log.write("info", "started", models=len(engine.repository.models))
        while self.config.poll_seconds:
            await asyncio.sleep(self.config.poll_seconds)
            try:
                await engine.repository.poll_folder()
            except EkidenError as error:
                engine.log.write("error", "poll_failed", error=str(error))

    def _create_http_server(self, engine: ServingEngine) -> uvicorn.Server:
        limits = self.config.limits
        # Forwarded headers and WebSockets are off: no client may set its address or upgrade.
        settings = uvicorn.Config(
            HttpApplication(engine, self._tokens),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            backlog=4096,
            http=connection_class(limits, engine.metrics, engine.arrivals),
            timeout_keep_alive=int(max(1, limits.idle_seconds)),
            timeout_graceful_shutdown=int(max(1, limits.stop_seconds)),
        )
        settings.load()
        settings.ssl = self._tls
        return _UvicornServer(settings)


async def _release_while_idle(engine: ServingEngine) -> None:
    """Return memory to the system after idle intervals, and end idle sequences."""
    num_trimmed = 0
    while True:
        num_before = engine.num_begun
        await asyncio.sleep(IDLE_INTERVAL_S)
        engine.repository.end_idle_sequences()
        is_quiet = engine.in_flight == 0 and engine.num_begun == num_before
        if is_quiet and num_trimmed != num_before:
            num_trimmed = num_before
            await asyncio.to_thread(trim_pools)


def _has_failed(task: asyncio.Future[None]) -> bool:
    """Return whether a task has ended with an error."""
    return task.done() and not task.cancelled() and task.exception() is not None


class Stoppable(Protocol):
    """Interface of the gRPC server as used here."""

    async def stop(self, grace: float) -> None:
        """Stop, letting calls in flight continue for a grace period."""


class _UvicornServer(uvicorn.Server):
    """Uvicorn server that leaves signal handling to ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def _open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises ServeError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServeError(f"listen on {host}:{port}: {(error.strerror or '').lower()}") from None
    return listener


def relax_gc() -> None:
    """Freeze all loaded objects out of garbage collection, and collect rarely: requests leave next
    to no cycles, and a full collection pauses the loop for milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVER_GC_THRESHOLDS)


def map_long_buffers() -> None:
    """Let malloc of glibc map each buffer of a megabyte or more, which then grows without a copy.

    The threshold is 128 KB at first, but the first long buffer that is freed raises it to that
    one's size. Bodies of requests then grow in the heap: each of eight that an iteration of the
    loop reads may be copied, of 8 MB in 8 ms of the processor.
    """
    with contextlib.suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BUFFER_BYTES)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory, which takes half the time; asyncio's where it is missing."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory
