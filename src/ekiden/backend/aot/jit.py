"""Just-in-time native code for functions of a loaded executable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from weakref import ref

from ekiden import runtime
from ekiden.backend.aot.build import compile_native
from ekiden.backend.vm.write_executable import VMFunction
from ekiden.codegen import llvm
from ekiden.runtime import Executable
from ekiden.runtime.debug.instructions import decode
from ekiden.target import Target


def compile_functions(executable: Executable, names: Sequence[str]) -> None:
    """Compile functions to native code. Concurrent runs continue in bytecode; later calls are
    native.
    """
    functions = []
    for name in names:
        n_registers, words = executable.code(name)
        params = tuple(executable.params(name))
        functions.append(VMFunction(name, params, n_registers, tuple(decode(words))))
    several, target = len(executable.devices) > 1, Target.host()
    native = compile_native(functions, executable.primitives, (), target, is_checked=several)
    image = runtime.load_image(llvm.link_image(native.objects, native.exports, target))
    runtime.get_global_func("ek.executable.attach")(executable, image)


def compile_when_hot(executable: Executable, calls: int) -> None:
    """Compile each function on its n-th call, within that call."""
    hot = runtime.convert(partial(_compile_function, ref(executable)))
    runtime.get_global_func("ek.executable.watch")(executable, calls, hot)


def _compile_function(executable: ref[Executable], name: str) -> None:
    alive = executable()
    if alive is not None:
        compile_functions(alive, [name])


__all__ = ["compile_functions", "compile_when_hot"]
