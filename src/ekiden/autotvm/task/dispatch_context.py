"""Dispatch contexts, which select the configuration of a template when it is called, and the
default context, which gives every knob its first value.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TypeAlias

from ekiden.autotvm.task.space import FallbackConfigEntity
from ekiden.target import TargetLike
from ekiden.tune.schedule_templates import Config

__all__ = ["DispatchContext", "FallbackContext", "Workload"]

Workload: TypeAlias = tuple[object, ...]
"""Name of a template and its arguments."""


class DispatchContext:
    """Base class of dispatch contexts; `query` returns a workload's configuration on a target."""

    _outer: DispatchContext | None = None
    _token: Token[DispatchContext] | None = None

    @staticmethod
    def current_context() -> DispatchContext:
        """Return the innermost active context."""
        return _CURRENT.get()

    def query(self, target: TargetLike | None, workload: Workload) -> Config:
        """Return the configuration of a workload from this context or an enclosing one."""
        config = self._query_inside(target, workload)
        if config is None:
            config = (self._outer or _FALLBACK).query(target, workload)
        return config

    def update(self, target: TargetLike, workload: Workload, cfg: Config) -> None:
        """Set the configuration of a workload, in subclasses that accept configurations. Raises
        NotImplementedError in others.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no configurations")

    def _query_inside(self, target: TargetLike | None, workload: Workload) -> Config | None:
        """Return the configuration of this context alone; None to ask the enclosing one."""
        raise NotImplementedError

    def __enter__(self) -> DispatchContext:
        self._outer = _CURRENT.get()
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None, "the context was entered"
        _CURRENT.reset(self._token)


class FallbackContext(DispatchContext):
    """Fallback context without tuning records: every knob of a template has its first value, unless
    `update` has set the configuration of a workload.
    """

    def __init__(self) -> None:
        self.memory: dict[tuple[str, Workload], Config] = {}

    def query(self, target: TargetLike | None, workload: Workload) -> Config:
        """Return the configuration set by `update`, or a fallback."""
        return self.memory.get((str(target), workload)) or FallbackConfigEntity()

    def update(self, target: TargetLike, workload: Workload, cfg: Config) -> None:
        """Set the configuration of a workload."""
        self.memory[str(target), workload] = cfg


_FALLBACK = FallbackContext()
_CURRENT: ContextVar[DispatchContext] = ContextVar("dispatch", default=_FALLBACK)
