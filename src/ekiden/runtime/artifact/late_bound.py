"""LazyModule-bound constants: weights that an executable leaves to be given when it is loaded.

They are named `const_<number>`, as TVM names them. An executable that waits for some can be saved
and looked into, but not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import Executable, Tensor, get_global_func, register_func, tensor
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import Writer

if TYPE_CHECKING:
    from ekiden.runtime import params
    from ekiden.runtime.artifact import frame
else:
    frame = LazyModule("ekiden.runtime.artifact.frame")
    params = LazyModule("ekiden.runtime.params")

PREFIX = "const_"


def missing(executable: Executable) -> list[str]:
    """The names of the constants that an executable still waits for."""
    unknown = [i for i, c in enumerate(executable.constants) if c is None]
    if not unknown:
        return []
    kinds = frame.read_constants(frame.file_of(executable))
    return [f"{PREFIX}{i}" for i in unknown if not kinds[i].is_made]


def split(executable: Executable, byte_limit: int) -> tuple[Executable, dict[str, Tensor]]:
    """An executable that waits for the constants of `byte_limit` bytes and more, and these by name.

    Raises LoadError where the executable waits for some already.
    """
    if waiting := missing(executable):
        raise LoadError(f"late-bound constants: they are moved already: {', '.join(waiting)}")
    data = frame.file_of(executable)
    constants = frame.read_constants(data)
    values = executable.constants
    chosen = {i for i, c in enumerate(constants) if c.nbytes >= byte_limit and not c.is_made}
    kept = [
        replace(c, data=None) if i in chosen else _filled(c, v)
        for i, (c, v) in enumerate(zip(constants, values, strict=True))
    ]
    moved = {f"{PREFIX}{i}": v for i in sorted(chosen) if (v := values[i]) is not None}
    return frame.executable_of(frame.with_constants(data, kept).joined()), moved


def bind(executable: Executable, given: Mapping[str, object]) -> None:
    """Give an executable the constants it waits for. Raises LoadError for names that are missing,
    unknown or have their data, ValueError for another shape or dtype.
    """
    waiting = missing(executable)
    if absent := [name for name in waiting if name not in given]:
        raise LoadError(f"late-bound constants: missing are {', '.join(absent)}")
    if unused := [name for name in given if name not in waiting]:
        raise LoadError(f"late-bound constants: the executable does not wait for {unused[0]!r}")
    set_constant = get_global_func("ek.executable.bind_constant")
    assert set_constant is not None
    for name in waiting:
        value = given[name]
        data = value if isinstance(value, Tensor) else tensor(value)  # type: ignore[arg-type]
        set_constant(executable, int(name.removeprefix(PREFIX)), data)


@register_func("ek.program.load_late_bound_consts_from_map")
def _from_map(executable: Executable, given: Mapping[str, object]) -> None:
    """What a module of a program gives as `load_late_bound_consts_from_map`."""
    bind(executable, {str(name): value for name, value in given.items()})


@register_func("ek.program.load_late_bound_consts")
def _from_file(executable: Executable, path: str) -> None:
    """The same from a file that `move_late_bound_consts` wrote, which is mapped."""
    bind(executable, params.map_params(path))


def whole(executable: Executable) -> memoryview:
    """The bytes of an executable with all the constants it has been given: its own memory, where
    it was not given any."""
    made = _with_given(executable)
    return frame.file_of(executable) if made is None else made.joined()


def write(executable: Executable, file: Writer) -> None:
    """The same into a file, of which no copy is made in memory."""
    made = _with_given(executable)
    if made is None:
        file.write(frame.file_of(executable))
    else:
        made.write(file)


def _with_given(executable: Executable) -> frame.Assembly | None:
    """The file with the constants that were given; None where it has all itself."""
    data = frame.file_of(executable)
    constants = frame.read_constants(data)
    if all(c.data is not None or c.is_made for c in constants):
        return None
    values = executable.constants
    return frame.with_constants(
        data, [_filled(c, v) for c, v in zip(constants, values, strict=True)]
    )


def _filled(constant: frame.Constant, value: Tensor | None) -> frame.Constant:
    if constant.data is not None or constant.is_made or value is None:
        return constant
    elements = value.reinterpret("uint8", (value.nbytes,)).numpy()
    return replace(constant, data=np.ascontiguousarray(elements).data)
