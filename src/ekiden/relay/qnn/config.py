"""Default rounding and compute dtype of `qnn.requantize`, as a stack of contexts (TVM's
`requantize_config`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

ROUNDING_MODES = ("UPWARD", "TONEAREST")
"""Rounding modes of ties: upward, or away from zero."""
REQUANTIZE_COMPUTE_DTYPES = ("int64", "float32", "float64")
"""Dtypes in which requantisation multiplies; int64 is fixed point."""


@dataclass(frozen=True, slots=True)
class RequantizeConfig:
    """Rounding mode and compute dtype of requantisation. Raises CompileError for unknown ones."""

    rounding: str = "UPWARD"
    compute_dtype: str = "int64"

    def __post_init__(self) -> None:
        """Check both fields."""
        check_choice("rounding", self.rounding, ROUNDING_MODES)
        check_choice("compute_dtype", self.compute_dtype, REQUANTIZE_COMPUTE_DTYPES)


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that a value is one of the choices.

    Raises:
        CompileError: It is none of them.
    """
    if value not in choices:
        names = ", ".join(map(repr, choices))
        raise CompileError(f"qnn.requantize: {what!r} must be one of {names}, got {value!r}")


_CURRENT_CONFIG: ContextVar[RequantizeConfig] = ContextVar("requantize_config")


def current_requantize_config() -> RequantizeConfig:
    """Return the innermost active configuration."""
    return _CURRENT_CONFIG.get(RequantizeConfig())


@contextmanager
def requantize_config(
    rounding: str = "UPWARD", compute_dtype: str = "int64"
) -> Iterator[RequantizeConfig]:
    """Set the configuration of `requantize` calls that are built inside `with`.

    It is written into these calls: the meaning of a module does not depend on where it is compiled.
    (TVM looks it up when it compiles.)
    """
    config = RequantizeConfig(rounding, compute_dtype)
    token = _CURRENT_CONFIG.set(config)
    try:
        yield config
    finally:
        _CURRENT_CONFIG.reset(token)


__all__ = ["RequantizeConfig", "current_requantize_config", "requantize_config"]
