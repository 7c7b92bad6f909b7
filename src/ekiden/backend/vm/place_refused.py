"""Place operators by whether the device that they would run on has code for them.

compiled for ["webgpu", "llvm"]:
    add(%x, take(%t, %i: int64))  ->  on_device(add(%x, on_device(take(%t, %i), cpu(0))), webgpu(0))

For who compiles for the host beside a default device: what that device's language refuses runs on
the host instead of being an error. Each operator is lowered and printed alone, once for each of its
forms; marks of the program go before. A module with devices is left as it is, and so is one whose
default is the host.
"""

from __future__ import annotations

from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.codegen import device
from ekiden.codegen.cache import kernel_key
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.annotation import DeviceCopyAttrs, OnDeviceAttrs, on_device
from ekiden.relay.transform.device_domains import TABLE
from ekiden.relay.transform.fuse_ops import alone, is_primitive_call
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import map_functions, on_body, rewrite_graph
from ekiden.runtime.errors import CompileError
from ekiden.target import CompilationConfig, Target
from ekiden.target.virtual_device import HOST

__all__ = ["PlaceRefused", "Refusals"]


class Refusals:
    """Which operators a target has no code for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, bool] = {}

    def __call__(self, call: Call) -> bool:
        """Whether it refuses one."""
        form = canonicalize(alone(call))
        key = kernel_key(form, self._target, "")
        if key not in self._known:
            self._known[key] = self._refuses(form)
        return self._known[key]

    def _refuses(self, form: Function) -> bool:
        try:
            device.split_program(lower_primitive(form, "alone", self._target), self._target)
        except CompileError:
            return True
        return False


def PlaceRefused(config: CompilationConfig | None) -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """The module with every operator's call placed, on the host where the device refuses it. It
        stays as it is where there is no choice, or where its devices are planned already (TABLE).
        """
        default = HOST if config is None else config.default_primitive_virtual_device
        if config is None or default.is_host or HOST not in config.devices or TABLE in module.attrs:
            return module
        refuses = Refusals(config.by_kind[default.device_type_int])

        def place(old: RelayExpr, new: RelayExpr) -> RelayExpr:
            """An operator's call under its place; what is no operator stays."""
            if not is_primitive_call(old):
                return new
            assert isinstance(old, Call)
            return on_device(new, HOST if refuses(old) else default, constrain_result=True)

        def rewrite(body: RelayExpr) -> RelayExpr:
            return rewrite_graph(body, lambda old, new: _unmarked(old, place(old, new)))

        return InferType()(map_functions(module, on_body(rewrite)))

    return Pass("PlaceRefused", transform, 0, (InferType(),))


def _unmarked(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """A mark of the program around one of these leaves its own alone."""
    if not isinstance(old, Call) or not isinstance(old.attrs, (OnDeviceAttrs, DeviceCopyAttrs)):
        return new
    assert isinstance(new, Call)
    inner = new.args[0]
    if isinstance(inner, Call) and isinstance(inner.attrs, OnDeviceAttrs):
        return new.with_fields(args=(inner.args[0],))
    return new
