"""TECompiler: compile single primitive functions to kernels (TVM's relay.backend.te_compiler).

    compiler = te_compiler.get()
    kernel = compiler.jit(function, "llvm")
    kernel(x, y)                                 # the last arguments are the results

`get_valid_implementations` and `select_implementation` return what an operator's strategy offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from ekiden.backend.kernels import lower_primitive
from ekiden.compiler.lowering import build
from ekiden.ir.attrs import Attrs
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import PassContext
from ekiden.ir.structural import structural_equal, structural_hash
from ekiden.ir.type import Type
from ekiden.kernels.families import override_options
from ekiden.relay.expr import Function
from ekiden.relay.op.strategy import OpImplementation, own_lowering, strategy_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime import PackedFunc
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target, TargetLike
from ekiden.target.target import target_or_current
from ekiden.te import Tensor
from ekiden.tir.stmt import PrimFunc


@dataclass(frozen=True, slots=True, eq=False)
class CachedFunc:
    """Lowered primitive function: source, target and PrimFunc."""

    source: Function
    target: Target
    prim_func: PrimFunc

    @property
    def funcs(self) -> IRModule:
        """Return the PrimFunc as a module."""
        return IRModule({"main": self.prim_func})

    def same_as(self, other: object) -> bool:
        """Return whether the other is the identical object."""
        return self is other


class TECompiler:
    """Compiler of primitive functions with a result cache."""

    def __init__(self) -> None:
        self._lowered: dict[tuple[object, ...], list[CachedFunc]] = {}
        self._jitted: dict[CachedFunc, PackedFunc] = {}

    def lower(
        self, source_func: Function, target: TargetLike | None = None, mod_name: str = "default"
    ) -> CachedFunc:
        """Lower a primitive function to a scheduled PrimFunc, inputs first, outputs last.

        It is the same one for equal functions, targets, module names and current PassContexts.

        Raises:
            CompileError: The function is no kernel.
        """
        to = target_or_current(target)
        context = repr(PassContext.current())
        key = (structural_hash(source_func), str(to), mod_name, context)
        cached = self._lowered.setdefault(key, [])
        # Hashes may collide; equality decides.
        for entry in cached:
            if structural_equal(entry.source, source_func):
                return entry
        typed = InferType()(IRModule.from_expr(source_func))["main"]
        if not isinstance(typed, Function):
            raise CompileError(f"lower: expected a Relay function, got {source_func!r}")
        name = f"tvmgen_{mod_name}_fused"
        lowered = CachedFunc(source_func, to, lower_primitive(typed, name, to, override_options()))
        cached.append(lowered)
        return lowered

    def jit(self, source_func: Function, target: TargetLike | None = None) -> PackedFunc:
        """Compile the kernel to a function of input and output tensors."""
        lowered = self.lower(source_func, target)
        if lowered not in self._jitted:
            module = build(lowered.prim_func, target=lowered.target)
            self._jitted[lowered] = module[str((lowered.prim_func.attrs or {})["global_symbol"])]
        return self._jitted[lowered]

    def items(self) -> Iterator[tuple[Function, CachedFunc]]:
        """Yield the lowered functions with their PrimFuncs."""
        for entries in self._lowered.values():
            yield from ((entry.source, entry) for entry in entries)

    def clear(self) -> None:
        """Clear the cache."""
        self._lowered.clear()
        self._jitted.clear()


@cache
def get() -> TECompiler:
    """Return the process-wide compiler."""
    return TECompiler()


def get_valid_implementations(
    op: Op, attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type, target: TargetLike
) -> list[OpImplementation]:
    """Return the valid implementations of an operator's strategy for a call, or the default
    lowering.

    Raises:
        CompileError: The operator has no kernel.
    """
    to = target_or_current(target)
    strategy = strategy_of(op.name, attrs, inputs, out_type, to)
    offered = strategy.valid() if strategy is not None else [own_lowering(op.name)]
    valid = [candidate for candidate in offered if candidate is not None]
    if not valid:
        raise CompileError(f"{op.name}: there is no implementation for {to}")
    return valid


def select_implementation(
    op: Op,
    attrs: Attrs | None,
    inputs: Sequence[Tensor],
    out_type: Type,
    target: TargetLike,
    use_autotvm: bool = True,
) -> tuple[OpImplementation, list[Tensor]]:
    """Return the implementation of the highest level, and its output tensors.

    AutoTVM's records are not read: `use_autotvm` changes nothing.

    Raises:
        CompileError: As in `get_valid_implementations`.
    """
    valid = get_valid_implementations(op, attrs, inputs, out_type, target)
    best = max(reversed(valid), key=lambda candidate: candidate.plevel)
    return best, best.compute(attrs, inputs, out_type)


__all__ = [
    "CachedFunc",
    "TECompiler",
    "get",
    "get_valid_implementations",
    "select_implementation",
]
