"""Executors of clusters that have none of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import CompileError


class RayExecutor(Executor):
    """Runs what it is given on a Ray cluster, that of `ray.init`; what a lost worker had is run by
    another. Dask has its own: `distributed.Client.get_executor()`.

    Raises CompileError where Ray is not installed.
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
        """The call as a task of the cluster, its arguments sent along; retried where a worker is
        lost.
        """
        task = self._ray.remote(max_retries=self._retries)(function)
        found: Future[Any] = task.remote(*args, **options).future()
        return found
