"""ONNX's backend interface (`onnx.backend.base`), for ONNX's test runner and programs written for
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ekiden import runtime
from ekiden.compiler.compile import compile
from ekiden.frontend.common.options import Dims, Shapes
from ekiden.ir.op import Array
from ekiden.runtime import Tensor
from ekiden.runtime.errors import EkidenError, UnsupportedError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets

TARGET_BY_ONNX_DEVICE = {"CPU": None, "OPENCL": "opencl"}
"""ONNX's name of a kind of device -> target."""
ONNX_DEVICES = tuple(TARGET_BY_ONNX_DEVICE)


class EkidenRep(BackendRep):  # type: ignore[misc]
    """Model prepared for ONNX's backend interface.

    An input whose values determine a rank or the computation (such as reduction axes), so that the
    import names it, becomes a constant of the executable: the model is compiled once for each of
    its values, at the first run with them. `fixed` names such inputs; it is empty for a model that
    compiles as it stands. No other input is.
    """

    def __init__(self, model: onnx.ModelProto, device: str = "CPU") -> None:
        self.model = model
        self._target = _parse_device(device)
        self.fixed: tuple[str, ...] = ()
        self._made: dict[tuple[bytes, ...], Executable] = {}
        self._shapes_decide = any(not i.type.HasField("tensor_type") for i in model.graph.input)
        """Whether inputs are sequences or optional: the model is compiled for those it gets."""
        if self._shapes_decide:
            return
        try:
            self._made[()] = compile(model, self._target)
        except EkidenError as error:
            self.fixed = tuple(getattr(error, "inputs", ()))
            if not self.fixed:
                raise

    def run(self, inputs: object, **kwargs: object) -> tuple[Any, ...]:
        """Run the model, and return its outputs as NumPy arrays in the model's order, in a
        namedtuple where names permit. `inputs` are arrays in the model's order, or by name.
        """
        names = [i.name for i in self.model.graph.input]
        named = self._bind_inputs(inputs, names)
        exe = self._executable(named)
        flat = dict(_flatten_inputs(named))
        result = exe(*(flat[i.name] for i in exe.inputs if i.name in flat))
        outputs_found = result if isinstance(result, tuple) else (result,)
        outputs = [o.name for o in self.model.graph.output]
        named_outputs: tuple[Any, ...] = namedtupledict("Outputs", outputs)(
            *map(_to_numpy, outputs_found)
        )
        return named_outputs

    def _bind_inputs(self, inputs: object, names: Sequence[str]) -> dict[str, object]:
        """Return the inputs by name, without those that are initializers."""
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        weights = {t.name for t in self.model.graph.initializer}
        # Before IR version 4, initializers are also graph inputs, which callers may leave out.
        if len(values) != len(names):
            names = [n for n in names if n not in weights]
        return {n: v for n, v in zip(names, values, strict=True) if n not in weights}

    def _executable(self, named: Mapping[str, object]) -> Executable:
        """Return the executable specialized for the values of constant inputs, discovering which
        inputs must be constant.
        """
        while True:
            values = {n: np.asarray(named[n]) for n in self.fixed if n in named}
            # Constant inputs are part of the compiled program, so their bytes are part of the cache
            # key.
            key = tuple(f"{v.dtype}{v.shape}".encode() + v.tobytes() for v in values.values())
            shapes = self._sequence_shapes(named)
            key += (repr(shapes).encode(),) if shapes else ()
            if key not in self._made:
                try:
                    fixed_model = inputs_to_initializers(self.model, values)
                    self._made[key] = compile(fixed_model, self._target, shape=shapes)
                except UnsupportedError as error:
                    more = tuple(n for n in error.inputs if n not in self.fixed)
                    if not more:
                        raise
                    # The import reports the inputs it must know; retry with them as constants.
                    self.fixed += more
                    continue
            return self._made[key]

    def _sequence_shapes(self, named: Mapping[str, object]) -> Shapes:
        """Return the shapes of sequence and optional inputs, if the model has any."""
        if not self._shapes_decide:
            return {}
        inputs = [i for i in self.model.graph.input if not i.type.HasField("tensor_type")]
        return {i.name: _compile_shape(named.get(i.name)) for i in inputs}


def _compile_shape(value: object) -> Dims | Sequence[Dims] | None:
    """Return a value's shape as `compile` expects it: a list of shapes for a sequence, None if
    absent.
    """
    if isinstance(value, (list, tuple)):
        return [np.asarray(element).shape for element in value]
    return None if value is None else np.asarray(value).shape


def _flatten_inputs(named: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the inputs by name; elements of a sequence as "name.0", "name.1", ..."""
    for name, value in named.items():
        yield name, value
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}.{at}", element) for at, element in enumerate(value))


def inputs_to_initializers(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model in which the given inputs are initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    remaining = [i for i in copy.graph.input if i.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(remaining)
    copy.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return copy


def _to_numpy(value: object) -> object:
    """Convert an output to NumPy."""
    if isinstance(value, list):
        return [_to_numpy(element) for element in value]
    return value.numpy() if isinstance(value, Tensor) else value


class EkidenBackend(Backend):  # type: ignore[misc]
    """Implementation of `onnx.backend.base.Backend`, which documents the methods' contract."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object) -> bool:
        """Return whether every node of the model can be compiled."""
        try:
            cls.prepare(model, device)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object) -> EkidenRep:
        """Compile a model."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"prepare: expected a device of {ONNX_DEVICES}, got {device!r}")
        super().prepare(model, device, **kwargs)
        return EkidenRep(model, device)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,  # noqa: ANN401 - arrays, or a mapping of them
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[Any, ...]:
        """Run one operator, of the version in `opset_version` or the newest."""
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = [n for n in node.input if n]
        values = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        arrays = {n: np.asarray(v) for n, v in values.items()}
        graph = helper.make_graph(
            [node],
            node.op_type,
            [_make_value_info(n, arrays[n]) for n in dict.fromkeys(names)],
            [onnx.ValueInfoProto(name=n) for n in node.output if n],
        )
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        imports = [helper.make_opsetid("", version)]
        if node.domain:
            imports.append(helper.make_opsetid(node.domain, kwargs.get("domain_version", 1)))
        model = helper.make_model(graph, opset_imports=imports)
        return EkidenRep(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models can run on a device ("CPU", "CUDA", "CPU:0", "OPENCL")."""
        return device.partition(":")[0] in ONNX_DEVICES


def _parse_device(device: str) -> Targets:
    """Return the compilation target for an ONNX device such as "CPU" or "OPENCL:1"."""
    name, _, number = device.partition(":")
    target = TARGET_BY_ONNX_DEVICE[name]
    if target is None or not number:
        return target
    placed: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    placed[runtime.device(target, int(number))] = target
    return placed


def _make_value_info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


prepare = EkidenBackend.prepare
run_model = EkidenBackend.run_model
run_node = EkidenBackend.run_node
supports_device = EkidenBackend.supports_device
is_compatible = EkidenBackend.is_compatible
