"""Builders and runners of AutoTVM under the auto-scheduler's names."""

from __future__ import annotations

from collections.abc import Callable

from ekiden import autotvm

__all__ = ["LocalBuilder", "LocalRPCMeasureContext", "LocalRunner", "RPCRunner"]


class LocalBuilder(autotvm.LocalBuilder):
    """Builder that compiles in worker processes on this machine."""

    def __init__(
        self,
        timeout: float = 60,
        n_parallel: int | None = None,
        build_func: str | Callable[..., object] = "default",
    ) -> None:
        super().__init__(timeout, n_parallel, build_func=build_func)


class LocalRunner(autotvm.LocalRunner):
    """Runner that measures in worker processes on this machine. `number`, `repeat` and
    `min_repeat_ms` are the runs per measurement, the measurements, and the minimum duration of one.
    """

    def __init__(
        self,
        timeout: float = 30,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 100,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        super().__init__(
            timeout,
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            enable_cpu_cache_flush=enable_cpu_cache_flush,
        )


class RPCRunner(autotvm.RPCRunner):
    """Runner that measures on the RPC servers with a given key at a tracker."""

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 30,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 100,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        super().__init__(
            key, host, port, priority, timeout, min_repeat_ms=min_repeat_ms,
            enable_cpu_cache_flush=enable_cpu_cache_flush,
        )  # fmt: skip


class LocalRPCMeasureContext:
    """Measurement in separate processes, which a local runner uses in any case; `runner` is one."""

    def __init__(
        self,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 30,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        self.runner = LocalRunner(
            timeout, number, repeat, min_repeat_ms, cooldown_interval, enable_cpu_cache_flush
        )
