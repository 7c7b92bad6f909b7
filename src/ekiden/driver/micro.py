"""From a model to a program for a machine without an allocator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ekiden.backend.crt.emit import prefix_of
from ekiden.backend.crt.kernels import Kernels
from ekiden.backend.crt.module import MicroModule, Pool, Tensor
from ekiden.backend.crt.plan import plan_module
from ekiden.backend.vm.pipeline import pipeline
from ekiden.driver.build import Model, describe, import_model
from ekiden.frontend.common.options import ImportOptions, Shapes
from ekiden.ir.pass_context import phase
from ekiden.relay.expr import Function
from ekiden.relay.transform import InferType, NameDimensions
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.target.target import TargetLike
from ekiden.target.triple import MICRO

DEFAULT = "default"
"""The name of a model that is given none (TVM's)."""


@dataclass(frozen=True, slots=True)
class MicroProgram:
    """A compiled model: the program, and the text of what was imported."""

    module: MicroModule
    relay: str


def compile(
    model: Model,
    target: TargetLike = "c",
    *,
    shape: Shapes | None = None,
    name: str = DEFAULT,
    pools: Sequence[Pool] = (),
) -> MicroProgram:
    """The program of a model of static shapes and straight lines, for a target of kind "c": a
    microcontroller ("c -mcpu=cortex-m7") or this machine.

    `shape` replaces the declared shapes of inputs by name, `name` is what names in C begin with.
    With `pools` the caller of the program gives these memories, the first preferred; else it has
    one of its own. Raises CompileError for what needs the runtime, naming the model's node.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise CompileError(f"compile: the name of a model library is one of C, got {name!r}")
    chosen = _target(target)
    module = NameDimensions()(InferType()(import_model(model, ImportOptions(shape))))
    if "main" not in module or not isinstance(module["main"], Function):
        raise CompileError("compile: the module has no Relay function 'main'")
    described = describe(module)
    inputs, outputs = (_tensors(described[k], k) for k in ("inputs", "outputs"))
    prepared = pipeline(chosen, plans_memory=False)(module)
    main = prepared["main"]
    assert isinstance(main, Function)
    kernels = Kernels(chosen, prefix_of(name))
    with phase("kernels"):
        made = plan_module(main, kernels, name, inputs, outputs, pools)
    return MicroProgram(made, module.astext())


def _target(given: TargetLike) -> Target:
    """The target, of kind "c" and one core. Raises CompileError for another."""
    target = Target.parse(given)
    if target.kind.name != "c":
        raise CompileError(
            f"compile: runtime 'crt' makes C: target kind 'c' expected, got {target.kind.name!r}"
        )
    if target.triple.partition("-")[0] not in MICRO:
        target.check_usable("compile")
    return Target(target, cores=1)


def _tensors(rows: object, what: str) -> tuple[Tensor, ...]:
    """What metadata say of the inputs or outputs. Raises CompileError for one of unknown shape or
    of what is no number."""
    assert isinstance(rows, list)
    found: list[Tensor] = []
    for row in rows:
        shape, dtype = row["shape"], row["dtype"]
        if not all(isinstance(d, int) for d in shape):
            raise CompileError(
                f"compile: runtime 'crt': {what.removesuffix('s')} '{row['name']}' has no static "
                f"shape: {dtype}{shape}; give one (--shape NAME=1,3,224,224)"
            )
        if not re.fullmatch(r"bool|(u?int|b?float)\d+", dtype):
            raise CompileError(
                f"compile: runtime 'crt': {what.removesuffix('s')} '{row['name']}' is {dtype}, "
                "tensors of numbers expected"
            )
        found.append(Tensor(row["name"], tuple(shape), dtype))
    return tuple(found)


__all__ = ["DEFAULT", "MicroProgram", "compile"]
