"""The face of Ekiden: compile a model, load an artifact, run it."""

from ekiden.driver.executable import Executable, TensorInfo, load

__all__ = ["Executable", "TensorInfo", "compile", "load"]


def __getattr__(name: str) -> object:
    """`compile` brings the whole compiler, so it is imported when first asked for: loading needs none of it."""
    if name != "compile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ekiden.driver.compile import compile as found

    return found
