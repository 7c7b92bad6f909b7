"""Late-bound constants: weights that an executable lacks and that are passed at load time.

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
    from ekiden.runtime.artifact import container_format
else:
    container_format = LazyModule("ekiden.runtime.artifact.container_format")
    params = LazyModule("ekiden.runtime.params")

LATE_BOUND_PREFIX = "const_"


def unbound_constants(executable: Executable) -> list[str]:
    """Return the names of the constants that an executable still waits for."""
    unknown = [i for i, c in enumerate(executable.constants) if c is None]
    if not unknown:
        return []
    kinds = container_format.unpack_constants_section(container_format.artifact_bytes(executable))
    return [f"{LATE_BOUND_PREFIX}{i}" for i in unknown if not kinds[i].is_computed_at_load]


def split_constants(
    executable: Executable, byte_limit: int
) -> tuple[Executable, dict[str, Tensor]]:
    """Split off the constants of `byte_limit` bytes and more: return an executable that waits for
    them, and their values by name. Raises LoadError if the executable waits for some already.
    """
    if waiting := unbound_constants(executable):
        raise LoadError(f"late-bound constants: already moved out: {', '.join(waiting)}")
    data = container_format.artifact_bytes(executable)
    constants = container_format.unpack_constants_section(data)
    values = executable.constants
    chosen = {
        i for i, c in enumerate(constants) if c.nbytes >= byte_limit and not c.is_computed_at_load
    }
    remaining = [
        replace(c, data=None) if i in chosen else _bound_record(c, v)
        for i, (c, v) in enumerate(zip(constants, values, strict=True))
    ]
    moved = {f"{LATE_BOUND_PREFIX}{i}": v for i in sorted(chosen) if (v := values[i]) is not None}
    return container_format.load_executable(
        container_format.replace_constants(data, remaining).to_bytes()
    ), moved


def bind_constants(executable: Executable, constants: Mapping[str, object]) -> None:
    """Bind the constants that an executable waits for.

    Raises:
        LoadError: for names that are missing, unknown or have their data.
        ValueError: for another shape or dtype.
    """
    waiting = unbound_constants(executable)
    if absent := [name for name in waiting if name not in constants]:
        raise LoadError(f"late-bound constants: missing: {', '.join(absent)}")
    if unused := [name for name in constants if name not in waiting]:
        raise LoadError(
            f"late-bound constants: the executable has no late-bound constant {unused[0]!r}"
        )
    set_constant = get_global_func("ek.executable.bind_constant")
    assert set_constant is not None
    for name in waiting:
        value = constants[name]
        data = value if isinstance(value, Tensor) else tensor(value)  # type: ignore[arg-type]
        set_constant(executable, int(name.removeprefix(LATE_BOUND_PREFIX)), data)


@register_func("ek.program.load_late_bound_consts_from_map")
def _bind_from_map(executable: Executable, constants: Mapping[str, object]) -> None:
    """Implement a module's `load_late_bound_consts_from_map`."""
    bind_constants(executable, {str(name): value for name, value in constants.items()})


@register_func("ek.program.load_late_bound_consts")
def _bind_from_file(executable: Executable, path: str) -> None:
    """Bind the constants in a file that `move_late_bound_consts` wrote; it is mapped."""
    bind_constants(executable, params.map_params(path))


def complete_artifact_bytes(executable: Executable) -> memoryview:
    """Return the bytes of an executable with all bound constants; its own memory if none were
    bound.
    """
    rebuilt = _complete_artifact_file(executable)
    return container_format.artifact_bytes(executable) if rebuilt is None else rebuilt.to_bytes()


def write_complete_artifact(executable: Executable, file: Writer) -> None:
    """Write an executable with all bound constants to a file, without a copy in memory."""
    rebuilt = _complete_artifact_file(executable)
    if rebuilt is None:
        file.write(container_format.artifact_bytes(executable))
    else:
        rebuilt.write(file)


def _complete_artifact_file(executable: Executable) -> container_format.ArtifactFile | None:
    """Return the file with the bound constants, or None where it is complete."""
    data = container_format.artifact_bytes(executable)
    constants = container_format.unpack_constants_section(data)
    if all(c.data is not None or c.is_computed_at_load for c in constants):
        return None
    values = executable.constants
    return container_format.replace_constants(
        data, [_bound_record(c, v) for c, v in zip(constants, values, strict=True)]
    )


def _bound_record(
    constant: container_format.ConstantRecord, value: Tensor | None
) -> container_format.ConstantRecord:
    if constant.data is not None or constant.is_computed_at_load or value is None:
        return constant
    elements = value.reinterpret("uint8", (value.nbytes,)).numpy()
    return replace(constant, data=np.ascontiguousarray(elements).data)
