"""Builders and runners on top of `tune.Measurer`, whose worker processes compile, run and compare
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ekiden import rpc
from ekiden.autotvm.measure.measure import (
    Builder,
    MeasureInput,
    MeasureResult,
    Runner,
    candidate_of,
)
from ekiden.runtime import environment
from ekiden.runtime.errors import InputError
from ekiden.tune.measure import Measurer
from ekiden.tune.remote import Remote

__all__ = ["LocalBuilder", "LocalRunner", "RPCRunner", "request_remote"]


class LocalBuilder(Builder):
    """Builder that compiles in worker processes on this machine.

    Args:
        timeout: Seconds that a configuration may take to compile.
        n_parallel: Processes; None for as many as EKIDEN_COMPILE_JOBS says.
        build_kwargs: Options of the build; there are none here.
        build_func: "default", or "ndk" for a server that links: what is sent is code either way.
        do_fork: Unused: the processes are started fresh.
        runtime: Unused: candidates are kernels.

    Raises:
        InputError: Another build_func.
    """

    def __init__(
        self,
        timeout: float = 60,
        n_parallel: int | None = None,
        build_kwargs: Mapping[str, object] | None = None,
        build_func: str | Callable[..., object] = "default",
        do_fork: bool = False,
        runtime: object = None,
    ) -> None:
        super().__init__(timeout, n_parallel or environment.num_compile_jobs(), build_kwargs)
        if callable(build_func):
            raise InputError("LocalBuilder: build_func 'default' or 'ndk' expected, got a function")
        if build_func not in ("default", "ndk"):
            raise InputError(
                f"LocalBuilder: build_func 'default' or 'ndk' expected, got {build_func!r}"
            )

    def build(self, measure_inputs: Sequence[MeasureInput]) -> Sequence[object]:
        """Return the inputs unchanged: the runner's measurer builds them within this builder's
        limits.
        """
        return measure_inputs


class MeasurerRunner(Runner):
    """Runner on top of a `tune.Measurer`."""

    measurer: Measurer

    def run(
        self, measure_inputs: Sequence[MeasureInput], build_results: Sequence[object]
    ) -> Sequence[MeasureResult]:
        """Return the measure results, each with its batch's total time as all_cost."""
        start = time.monotonic()
        task = measure_inputs[0].task.tuning_task
        outcomes = self.measurer.measure(task, list(map(candidate_of, measure_inputs)))
        seconds = time.monotonic() - start
        return [MeasureResult.from_outcome(outcome, seconds) for outcome in outcomes]


class LocalRunner(MeasurerRunner):
    """Runner that measures on this machine, alternating each configuration with the default.

    Args:
        timeout: Seconds of a process.
        n_parallel: Unused: runs beside each other would disturb each other.
        number: Calls of a turn; the clock decides here.
        repeat: Turns, four at least.
        min_repeat_ms: Milliseconds of the turns of a batch, at least.
        cooldown_interval: Unused.
        enable_cpu_cache_flush: Whether caches are emptied before each call.
        module_loader: Unused on a processor of this machine.
    """

    def __init__(
        self,
        timeout: float = 30,
        n_parallel: int | None = None,
        number: int = 4,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.1,
        enable_cpu_cache_flush: bool = False,
        module_loader: object = None,
    ) -> None:
        super().__init__(timeout, n_parallel)
        self.measurer = Measurer(
            cold=enable_cpu_cache_flush,
            run_seconds=max(timeout, 5),
            turns=max(4, min(repeat * number, 12)),
            race_seconds=max(1.5, min_repeat_ms / 1000),
        )


class RPCRunner(MeasurerRunner):
    """Runner that measures on an RPC server.

    Args:
        key: The server's key at its tracker.
        host: The tracker's host.
        port: The tracker's port.
        priority: The priority of requests; the tracker's queue decides.
        timeout: Seconds of a session.
        n_parallel: Unused.
        number: Calls of a turn.
        repeat: Turns.
        min_repeat_ms: Milliseconds of the turns of a batch, at least.
        cooldown_interval: Unused.
        enable_cpu_cache_flush: Refused: a server has its own caches.
        module_loader: Unused: what is sent is an artifact.

    Raises:
        InputError: Caches of a server cannot be emptied.
    """

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        timeout: float = 30,
        n_parallel: int | None = None,
        number: int = 4,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.1,
        enable_cpu_cache_flush: bool = False,
        module_loader: object = None,
    ) -> None:
        super().__init__(timeout, n_parallel)
        self.key, self.host, self.port = key, host, port
        self.measurer = Measurer(
            remote=Remote(host, int(port), key, is_tracker=True),
            cold=enable_cpu_cache_flush,
            run_seconds=max(timeout, 5),
            race_seconds=max(1.5, min_repeat_ms / 1000),
        )


def request_remote(
    device_key: str,
    host: str = "127.0.0.1",
    port: int = 9190,
    priority: int = 1,
    timeout: float = 60,
) -> rpc.RPCSession:
    """Return an RPC session with a server of the given key at a tracker.

    Args:
        device_key: The key.
        host: The tracker's host.
        port: The tracker's port.
        priority: The priority of the request.
        timeout: Seconds that the session may take.

    Raises:
        RPCError: There is no such server, or no tracker.
    """
    tracker = rpc.connect_tracker(host, port)
    return tracker.request(device_key, priority=priority, session_timeout=timeout)
