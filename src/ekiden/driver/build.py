"""From a model to the bytes of an artifact."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TypeAlias

import onnx

from ekiden.backend.kernels.build import flush_asked
from ekiden.backend.vm.compile import compile_variants
from ekiden.backend.vm.module_kernels import ModuleKernels
from ekiden.backend.vm.pipeline import optimize
from ekiden.codegen.build import generator_of
from ekiden.codegen.parallel import Progress
from ekiden.frontend.onnx import from_onnx
from ekiden.frontend.onnx.importer import Shapes
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import phase
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType, TupleType, Type, TypeCall
from ekiden.relay.analysis import shape_conditions
from ekiden.relay.expr import Constant, Function
from ekiden.relay.transform import InferType, NameDimensions
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError
from ekiden.runtime.metadata import ANY_OBJECT, MAPS, SEQUENCE, TEXT, Dim
from ekiden.target.virtual_device import Targets, compilation_config

Model: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | IRModule

EXECUTORS = ("vm", "aot", "async")
"""How an executable runs: its bytecode is interpreted, has native code beside it, or is interpreted
with independent kernels at the same time."""


@phase("import")
def import_model(model: Model, shape: Shapes | None = None) -> IRModule:
    """A module from whatever `compile` takes. Raises CompileError for anything else."""
    if isinstance(model, IRModule):
        return model
    if not isinstance(model, (str, os.PathLike, bytes, onnx.ModelProto)):
        kinds = "a path, bytes, an onnx.ModelProto or an ekiden.IRModule"
        raise CompileError(f"compile: expected {kinds}, got {type(model).__name__}")
    return from_onnx(model, shape)


@dataclass(frozen=True, slots=True)
class Compiled:
    """An artifact, and the names of the files beside the model's that it has weights from."""

    artifact: memoryview
    weight_files: tuple[str, ...]


def compile_to_bytes(
    model: Model,
    target: Targets = None,
    shape: Shapes | None = None,
    executor: str = "vm",
) -> bytes:
    """The bytes of the artifact that `compile` makes and `Executable.save` writes."""
    return bytes(compile_model(model, target, shape, executor).artifact)


def compile_model(
    model: Model,
    target: Targets,
    shape: Shapes | None,
    executor: str,
    in_place: bool = True,
    progress: Progress | None = None,
    mod_name: str = "",
) -> Compiled:
    """Compile; arguments and errors are those of `compile`, `in_place` as in `pipeline`. `mod_name`
    is the name of the factory of graph executors, "default" by default.
    """
    if executor not in EXECUTORS:
        kinds = ", ".join(map(repr, EXECUTORS))
        raise CompileError(f"compile: executor one of {kinds} expected, got {executor!r}")
    config = compilation_config(target)
    for each in config.primitive_targets:
        generator_of(each, "compile")
        if executor == "aot" and each.kind.name != "llvm":
            got = f"got {each.kind.name!r}"
            raise CompileError(f"compile: executor 'aot' makes code for target kind 'llvm', {got}")
    flushes = [flush_asked(each) for each in config.primitive_targets]
    module = import_model(model, shape)
    if "main" not in module or not isinstance(module["main"], Function):
        raise CompileError("compile: the module has no Relay function 'main'")
    weight_files = module.attrs.get("weight_files", ())
    assert isinstance(weight_files, tuple)
    module = _with_conditions(NameDimensions()(InferType()(module)))
    targets = config.primitive_targets
    metadata: dict[str, object] = {
        "executor": executor,
        "weights": _weight_bytes(module),
        "main": describe(module),
        "producer": f"ekiden {version('ekiden')}",
    }
    if any(flushes):
        metadata["denormals"] = "flush"
    if mod_name:
        metadata["mod_name"] = mod_name
    if tensors := module.attrs.get("tensors"):
        assert isinstance(tensors, tuple)
        metadata["tensors"] = {name: [node, at] for name, node, at in tensors}
    if len(targets) > 1:
        metadata["variants"] = list(map(str, targets))
    concurrent = executor == "async"
    with _bar() if progress is None else nullcontext(progress) as shown:
        kernels = [ModuleKernels(t, shown) for t in targets]
        prepared = (
            (
                optimize(module, made.target, config, in_place=in_place and not concurrent,
                         kernels=made, concurrent=concurrent),
                {**metadata, "target": str(made.target)},
                made,
            )
            for made in kernels
        )  # fmt: skip
        code = compile_variants(prepared, is_native=executor == "aot")
    return Compiled(code, weight_files)


def _with_conditions(module: IRModule) -> IRModule:
    """The module with what the operators of `main` need of its named dimensions, unless its
    frontend said so.
    """
    if "constraints" in module.attrs:
        return module
    module = InferType()(module)
    main = module["main"]
    assert isinstance(main, Function)
    attrs = {**module.attrs, "constraints": tuple(shape_conditions(main))}
    return IRModule(dict(module.functions.items()), module.type_definitions, attrs)


def describe(module: IRModule) -> dict[str, object]:
    """What an executable's metadata say of `main`: names, shapes and dtypes of its inputs and
    outputs, and the upper bounds of its symbols.
    """
    main = module["main"]
    assert isinstance(main, Function)
    kinds = [p.checked_type for p in main.params]
    results = _fields(main.body.checked_type)
    names = module.attrs.get("input_names") or [p.name_hint for p in main.params]
    out_names = module.attrs.get("output_names") or [f"output{i}" for i in range(len(results))]
    assert isinstance(names, Sequence) and isinstance(out_names, Sequence)
    inputs = [_describe(str(n), k, module.attrs) for n, k in zip(names, kinds, strict=True)]
    outputs = [_describe(str(n), k, module.attrs) for n, k in zip(out_names, results, strict=True)]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "limits": limits(kinds),
    }


def _weight_bytes(module: IRModule) -> int:
    """Bytes of the constants of a module, each once."""
    found: dict[int, int] = {}
    for function in module.functions.values():
        if isinstance(function, Function):
            for each in post_order(function, into_functions=True):
                if isinstance(each, Constant):
                    found[id(each.data)] = each.data.nbytes
    return sum(found.values())


def limits(kinds: Sequence[Type]) -> dict[str, int]:
    """Symbol -> the largest value it may have, for those that have one."""
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    return {d.name: d.upper for d in dims if isinstance(d, SizeVar) and d.upper is not None}


def _fields(kind: Type) -> list[Type]:
    return list(kind.fields) if isinstance(kind, TupleType) else [kind]


def _describe(name: str, kind: Type, attrs: Mapping[str, object]) -> dict[str, object]:
    """`attrs["sequences"]` says that a List of tensors is one of Python at run time,
    `attrs["texts"]` which tensors of bytes are strings, `attrs["maps"]` which matrices are lists of
    dictionaries.
    """
    texts = attrs.get("texts", ())
    assert isinstance(texts, Sequence)
    if isinstance(kind, TensorType) and name in texts:
        return {"name": name, "shape": [_dim(d) for d in kind.shape[:-1]], "dtype": TEXT}
    given = attrs.get("maps", ())
    assert isinstance(given, Sequence)
    maps = dict(given)
    if isinstance(kind, TensorType) and name in maps:
        keys, rows = list(maps[name]), [_dim(kind.shape[0])]
        return {"name": name, "shape": rows, "dtype": f"{MAPS}{kind.dtype}", "keys": keys}
    element = kind.args[0] if attrs.get("sequences") and isinstance(kind, TypeCall) else None
    if isinstance(element, TensorType):
        shape = [_dim(d) for d in element.shape]
        return {"name": name, "shape": shape, "dtype": f"{SEQUENCE}{element.dtype}"}
    if not isinstance(kind, TensorType):
        return {"name": name, "shape": [], "dtype": ANY_OBJECT}
    return {"name": name, "shape": [_dim(d) for d in kind.shape], "dtype": kind.dtype}


def _dim(dim: PrimExpr) -> Dim:
    return dim.value if isinstance(dim, IntImm) else prim_text(dim)


def _bar() -> AbstractContextManager[Progress | None]:
    """A progress bar over kernels where standard error is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    bar: AbstractContextManager[Progress] = import_module("ekiden.driver.progress").Bar()
    return bar
