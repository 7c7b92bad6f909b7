"""Executor for Ray clusters, which provide none themselves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import CompileError


class RayExecutor(Executor):
    """Executor for the Ray cluster of `ray.init`; calls of a lost worker are rerun elsewhere. Dask
    has its own executor: `distributed.Client.get_executor()`. Raises CompileError if Ray is not
    installed.
    """

    def __init__(self, retries: int = 3) -> None:
        try:
            self._ray = import_module("ray")
        except ImportError as error:
            raise CompileError(
                "tune: a cluster of Ray needs it: pip install ekiden[tune]"
            ) from error
        self._retries = retries

    def submit(  # any arguments, as the base class has it
        self,
        function: Callable[..., object],
        /,
        *args: Any,  # noqa: ANN401  whatever the function takes
        **options: Any,  # noqa: ANN401
    ) -> Future[Any]:
        """Submit a call as a cluster task, sending its arguments along; it is retried if its worker
        is lost.
        """
        task = self._ray.remote(max_retries=self._retries)(function)
        future: Future[Any] = task.remote(*args, **options).future()
        return future
