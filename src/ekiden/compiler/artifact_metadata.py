"""Metadata of an artifact: inputs, outputs, and how the program was made."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden.backend.kernels.build import flushes_denormals
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.sum_value import is_sum_type
from ekiden.ir.dtype import itemsize
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.module import IRModule
from ekiden.ir.package_versions import package_version
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.type import TensorType, TupleType, Type, TypeCall
from ekiden.relay.expr import Constant, Function
from ekiden.relay.visitor import post_order
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    ANY_RANK_SHAPE,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    Dim,
)
from ekiden.runtime.errors import CompileError
from ekiden.target.virtual_device import CompilationConfig


def describe_artifact(
    module: IRModule, imported: ImportResult, config: CompilationConfig, options: CompileOptions
) -> dict[str, object]:
    """Return the metadata of the artifact of a typed module.

    Args:
        module: Typed module with a Relay function `main`.
        imported: What the frontend declared of the model.
        config: Targets and devices.
        options: Options of the compilation.
    """
    main = module["main"]
    assert isinstance(main, Function)
    targets = config.primitive_targets
    metadata: dict[str, object] = {
        "executor": options.executor,
        "weights": _constant_bytes(module),
        "main": describe_main(main, imported),
        "producer": f"ekiden {package_version('ekiden')}",
    }
    optional: dict[str, object] = {
        "mod_name": options.mod_name,
        "states": list(imported.states),
        "tensors": {name: [node, index] for name, node, index in imported.tensors},
        "device_targets": list(map(str, config.device_targets)),
        "variants": list(map(str, targets)) if len(targets) > 1 else [],
        "denormals": "flush" if any(map(flushes_denormals, targets)) else "",
    }
    return metadata | {key: value for key, value in optional.items() if value}


def describe_main(main: Function, imported: ImportResult) -> dict[str, object]:
    """Return the metadata of `main`: names, shapes and dtypes of inputs and outputs, and the
    symbols' upper bounds.
    """
    kinds = [p.checked_type for p in main.params]
    results = _flatten_fields(main.body.checked_type)
    names = imported.input_names or [p.name_hint for p in main.params]
    out_names = imported.output_names or [f"output{i}" for i in range(len(results))]
    inputs = [_describe_value(n, k, imported) for n, k in zip(names, kinds, strict=True)]
    outputs = [_describe_value(n, k, imported) for n, k in zip(out_names, results, strict=True)]
    return {"inputs": inputs, "outputs": outputs, "limits": _symbol_bounds(kinds)}


def _constant_bytes(module: IRModule) -> int:
    """Return the bytes of the constants of a module, each counted once."""
    sizes: dict[int, int] = {}
    for function in module.functions.values():
        if isinstance(function, Function):
            for expr in post_order(function, into_functions=True):
                if isinstance(expr, Constant):
                    sizes[id(expr.data)] = expr.data.nbytes
    return sum(sizes.values())


def _symbol_bounds(kinds: Sequence[Type]) -> dict[str, int]:
    """Return the upper bounds of the symbols that have one."""
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    return {d.name: d.upper for d in dims if isinstance(d, SizeVar) and d.upper is not None}


def _flatten_fields(kind: Type) -> list[Type]:
    """Return the leaf types of a nested tuple type."""
    return list(kind.fields) if isinstance(kind, TupleType) else [kind]


def _describe_value(name: str, kind: Type, imported: ImportResult) -> dict[str, object]:
    if isinstance(kind, TensorType) and name in imported.texts:
        return {
            "name": name,
            "shape": [_describe_dim(d) for d in kind.shape[:-1]],
            "dtype": STRING_DTYPE,
        }
    maps = dict(imported.maps)
    if isinstance(kind, TensorType) and name in maps:
        keys, rows = list(maps[name]), [_describe_dim(kind.shape[0])]
        return {
            "name": name,
            "shape": rows,
            "dtype": f"{SEQUENCE_OF_MAPS_PREFIX}{kind.dtype}",
            "keys": keys,
        }
    if imported.sequences and is_sum_type(kind):
        tensor = kind.args[0] if isinstance(kind, TypeCall) else kind
        assert isinstance(tensor, TensorType), "an output is a tensor of one of several ranks"
        return {
            "name": name,
            "shape": list(ANY_RANK_SHAPE),
            "dtype": f"{ANY_RANK_PREFIX}{tensor.dtype}",
        }
    element = kind.args[0] if imported.sequences and isinstance(kind, TypeCall) else None
    if isinstance(element, TensorType):
        shape = [_describe_dim(d) for d in element.shape]
        return {"name": name, "shape": shape, "dtype": f"{SEQUENCE_PREFIX}{element.dtype}"}
    if not isinstance(kind, TensorType):
        return {"name": name, "shape": [], "dtype": OBJECT_DTYPE}
    _check_size(name, kind)
    return {"name": name, "shape": [_describe_dim(d) for d in kind.shape], "dtype": kind.dtype}


def _check_size(name: str, kind: TensorType) -> None:
    """Raise CompileError for a tensor of 2**63 bytes or more."""
    known_dims = [d.value for d in kind.shape if isinstance(d, IntImm)]
    if math.prod(known_dims) * itemsize(kind.dtype) >= 1 << 63:
        raise CompileError(
            f"compile: '{name}' is a {kind.dtype}{[_describe_dim(d) for d in kind.shape]}: "
            "a tensor of more than 2**63 bytes"
        )


def _describe_dim(dim: PrimExpr) -> Dim:
    return dim.value if isinstance(dim, IntImm) else format_prim_expr(dim)
