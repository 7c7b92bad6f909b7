"""Single functions to kernels: TVM's `relay.backend.te_compiler`.

    compiler = te_compiler.get()
    kernel = compiler.jit(function, "llvm")
    kernel(x, y)                                 # the last arguments are the results

What a strategy offers for an operator is asked for with `get_valid_implementations` and
`select_implementation`.
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
from ekiden.kernels.families import given_decisions
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
    """A function, the target it was lowered for, and its loop program."""

    source: Function
    target: Target
    prim_func: PrimFunc

    @property
    def funcs(self) -> IRModule:
        """The program as a module."""
        return IRModule({"main": self.prim_func})

    def same_as(self, other: object) -> bool:
        """Whether it is the very same."""
        return self is other


class TECompiler:
    """Lowers functions of operators alone, as fusion makes them, and remembers what it lowered."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], list[CachedFunc]] = {}
        self._jitted: dict[CachedFunc, PackedFunc] = {}

    def lower(
        self, source_func: Function, target: TargetLike | None = None, mod_name: str = "default"
    ) -> CachedFunc:
        """The scheduled loop program of a function, inputs first and results last; the same one for
        equal functions, targets, module names and current PassContexts. Raises CompileError for
        what is no kernel.
        """
        to = target_or_current(target)
        said = repr(PassContext.current())
        key = (structural_hash(source_func), str(to), mod_name, said)
        place = self._made.setdefault(key, [])
        for found in place:
            if structural_equal(found.source, source_func):
                return found
        typed = InferType()(IRModule.from_expr(source_func))["main"]
        if not isinstance(typed, Function):
            raise CompileError(f"lower: expected a Relay function, got {source_func!r}")
        name = f"tvmgen_{mod_name}_fused"
        made = CachedFunc(source_func, to, lower_primitive(typed, name, to, given_decisions()))
        place.append(made)
        return made

    def jit(self, source_func: Function, target: TargetLike | None = None) -> PackedFunc:
        """The compiled kernel: a function of the inputs and of what takes the results."""
        lowered = self.lower(source_func, target)
        if lowered not in self._jitted:
            module = build(lowered.prim_func, target=lowered.target)
            self._jitted[lowered] = module[str((lowered.prim_func.attrs or {})["global_symbol"])]
        return self._jitted[lowered]

    def items(self) -> Iterator[tuple[Function, CachedFunc]]:
        """What is remembered."""
        for place in self._made.values():
            yield from ((each.source, each) for each in place)

    def clear(self) -> None:
        """Forget all."""
        self._made.clear()
        self._jitted.clear()


@cache
def get() -> TECompiler:
    """The compiler of this process."""
    return TECompiler()


def get_valid_implementations(
    op: Op, attrs: Attrs | None, inputs: Sequence[Tensor], out_type: Type, target: TargetLike
) -> list[OpImplementation]:
    """What the strategy of an operator offers for a call; Ekiden's own lowering where it has none.
    Raises CompileError for an operator that has no kernel.
    """
    to = target_or_current(target)
    strategy = strategy_of(op.name, attrs, inputs, out_type, to)
    found = strategy.valid() if strategy is not None else [own_lowering(op.name)]
    valid = [each for each in found if each is not None]
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
    """The implementation that is taken, of the highest level, and its tensors. (AutoTVM's records
    are not read: `use_autotvm` changes nothing.) Raises CompileError as
    `get_valid_implementations`.
    """
    valid = get_valid_implementations(op, attrs, inputs, out_type, target)
    best = max(reversed(valid), key=lambda each: each.plevel)
    return best, best.compute(attrs, inputs, out_type)


__all__ = [
    "CachedFunc",
    "TECompiler",
    "get",
    "get_valid_implementations",
    "select_implementation",
]
