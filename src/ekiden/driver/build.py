"""compile(): from a model to an executable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias

from ekiden import runtime
from ekiden.backend.kernels.build import Progress
from ekiden.backend.vm.compile import compile_module
from ekiden.backend.vm.pipeline import optimize
from ekiden.driver.executable import Dim, Executable
from ekiden.frontend.onnx import from_onnx
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.text import prim_text
from ekiden.ir.transform import PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Function
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | IRModule"


def import_model(model: Model, shape: Mapping[str, Sequence[Dim]] | None = None) -> IRModule:
    """A module from whatever `compile` takes."""
    return model if isinstance(model, IRModule) else from_onnx(model, shape)


def compile(
    model: Model, target: str | Target = "llvm", *, shape: Mapping[str, Sequence[Dim]] | None = None
) -> Executable:
    """Compile a model: a path to an ONNX file, an onnx.ModelProto, its bytes, or an IRModule with a
    function `main`.

    `target` "llvm" is this machine. `shape` replaces the declared shapes of inputs by name. Options
    and instruments come from the current PassContext. Raises ImportModelError, UnsupportedError or
    CompileError; each names the model's node.
    """
    return Executable(runtime.Executable.from_bytes(compile_to_bytes(model, target, shape)))


def compile_to_bytes(
    model: Model, target: str | Target = "llvm", shape: Mapping[str, Sequence[Dim]] | None = None
) -> bytes:
    """The bytes of the artifact that `compile` makes and `Executable.save` writes."""
    chosen = Target.parse(target)
    module = InferType()(import_model(model, shape))
    metadata: dict[str, object] = {
        "main": describe(module),
        "producer": f"ekiden {version('ekiden')}",
        "target": str(chosen),
    }
    with PassContext.current().scope(), _progress() as progress:
        return compile_module(optimize(module, chosen), chosen, metadata, progress)


def describe(module: IRModule) -> dict[str, object]:
    """Names, shapes and dtypes of the inputs and outputs of `main`, as an executable's metadata
    holds them.
    """
    if "main" not in module or not isinstance(main := module["main"], Function):
        raise CompileError("compiling a module: it has no Relay function 'main'")
    names = module.attrs.get("input_names") or [p.name_hint for p in main.params]
    kinds = [p.checked_type for p in main.params]
    results = _tensor_fields(main.body.checked_type)
    out_names = module.attrs.get("output_names") or [f"output{i}" for i in range(len(results))]
    assert isinstance(names, Sequence) and isinstance(out_names, Sequence)
    return {
        "inputs": [_describe(str(n), k) for n, k in zip(names, kinds, strict=True)],
        "outputs": [_describe(str(n), k) for n, k in zip(out_names, results, strict=True)],
    }


def _tensor_fields(kind: Type) -> list[Type]:
    return list(kind.fields) if isinstance(kind, TupleType) else [kind]


def _describe(name: str, kind: Type) -> dict[str, object]:
    if not isinstance(kind, TensorType):
        return {"name": name, "shape": [], "dtype": "object"}
    return {"name": name, "shape": [_dim(d) for d in kind.shape], "dtype": kind.dtype}


def _dim(dim: PrimExpr) -> Dim:
    return dim.value if isinstance(dim, IntImm) else prim_text(dim)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A progress bar over kernels where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling kernels", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total)
