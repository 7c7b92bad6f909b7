"""Dispatch on a dynamic axis size: specialised functions for bucket sizes, a general one for the
rest.

    FlexibleShapeDispatch([1, 4])
    def @main(%x: Tensor[(2, 3), float32]) -> Tensor[(2, 3), float32] { nn.relu(%x) }
    ->  def @main(%x: Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32] {
          if (n == 1) { @main_1(%x) } else { if (n == 4) { @main_4(%x) } else { @main_any(%x) } } }

`auto_pad` takes the next of these sizes that is larger, where there is one, pads the input and cuts
the result. A dimension with a name needs no pass to be any size: this one is for the kernels of
single sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, SizeVar, const
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Expr, Function, GlobalVar, If, Tuple, TupleGetItem, Var
from ekiden.relay.expr import const as constant
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, as_dim


def FlexibleShapeDispatch(  # noqa: N802
    buckets: Sequence[int],
    axis: int = 0,
    auto_pad: bool = False,
    pad_value: float = 0,
    input_indices: Sequence[int] | None = None,
    affects_output: bool = True,
) -> Pass:
    """Return a pass that dispatches on an axis size to functions specialised to bucket sizes (TVM's
    FlexibleShapeDispatch).

    Args:
        buckets: The sizes.
        axis: The axis of the inputs that has them.
        auto_pad: Whether inputs are padded to the next size.
        pad_value: What they are padded with.
        input_indices: The inputs, all of one size; the first if None.
        affects_output: Whether the results have that size on their `axis`, too.

    Raises:
        CompileError: For inputs without such an axis, and where the results disagree.
    """
    if not buckets or min(buckets) < 1:
        raise CompileError(f"FlexibleShapeDispatch: sizes above 0 expected, got {list(buckets)}")
    options = _DispatchOptions(
        axis, auto_pad, pad_value, tuple(input_indices or (0,)), affects_output
    )

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Build a function for each bucket and one that dispatches."""
        return InferType()(_ShapeDispatcher(module, options).build_module(sorted(set(buckets))))

    return Pass("FlexibleShapeDispatch", transform, 0, (InferType(),))


@dataclass(frozen=True, slots=True)
class _DispatchOptions:
    """Options of FlexibleShapeDispatch."""

    axis: int
    auto_pad: bool
    pad_value: float
    inputs: tuple[int, ...]
    affects_output: bool


class _ShapeDispatcher:
    """Builder of the dispatching `main` and of its specialised variants."""

    def __init__(self, module: IRModule, options: _DispatchOptions) -> None:
        self.module, self.options = module, options
        main = module["main"]
        assert isinstance(main, Function)
        self.main, self.size = main, SizeVar("n")
        for number in options.inputs:
            self._check_input(number)

    def _check_input(self, number: int) -> None:
        params = self.main.params
        what = f"FlexibleShapeDispatch: input {number}"
        if not 0 <= number < len(params):
            raise CompileError(f"{what}: @main has {len(params)} inputs")
        kind, axis = params[number].checked_type, self.options.axis
        if not isinstance(kind, TensorType) or not 0 <= axis < len(kind.shape):
            raise CompileError(f"{what}: a tensor with axis {axis} expected, got {kind}")

    def build_module(self, buckets: Sequence[int]) -> IRModule:
        """Build the module with the dispatcher and one variant per bucket size."""
        params = self._params_with_size(self.size)
        # The general function comes first: the type of its results is that of all.
        anything, module = self._add_variant(self.module, "any", params)
        kind = self._check_result_type(module, anything)
        body: Expr = anything(*params)
        # Built from the innermost `else` outwards: the smallest bucket is tested first.
        for bucket in reversed(buckets):
            one, module = self._add_variant(
                module, str(bucket), self._params_with_size(const(bucket, "int64"))
            )
            body = If(
                self._bucket_condition(bucket, params),
                self._call_variant(one, bucket, params, kind),
                body,
            )
        dispatcher = self.main.with_fields(params=tuple(params), body=body, ret_type=kind)
        return module.with_function("main", dispatcher)

    def _params_with_size(self, dim: PrimExpr) -> list[Var]:
        """Return the parameters with a given size on the dispatched axis."""
        params = list(self.main.params)
        for number in self.options.inputs:
            var = params[number]
            kind = var.checked_type
            assert isinstance(kind, TensorType)
            shape = list(kind.shape)
            shape[self.options.axis] = dim
            params[number] = Var(var.name_hint, TensorType(tuple(shape), kind.dtype), var.span)
        return params

    def _add_variant(
        self, module: IRModule, name: str, params: Sequence[Var]
    ) -> tuple[GlobalVar, IRModule]:
        """Add a variant of `main` with the given parameters to the module."""
        full = f"main_{name}"
        if full in module:
            raise CompileError(f"FlexibleShapeDispatch: the module has a function @{full} already")
        # Variables of its own, as each variant declares another type for them.
        fresh_params = [
            Var(p.name_hint, p.type_annotation or p.checked_type, p.span) for p in params
        ]
        body = bind(self.main.body, dict(zip(self.main.params, fresh_params, strict=True)))
        variant = self.main.with_fields(params=tuple(fresh_params), body=body, ret_type=None)
        extended = module.with_function(full, variant.with_attr("Inline", 1))
        return extended.get_global_var(full), extended

    def _check_result_type(self, module: IRModule, anything: GlobalVar) -> Type:
        """Return the result type; raise unless the dynamic size occurs in it exactly if
        `affects_output`.
        """
        typed = InferType()(module)[anything]
        assert isinstance(typed, Function) and typed.ret_type is not None
        axis, affects = self.options.axis, self.options.affects_output
        for leaf in _tensor_leaves(typed.ret_type):
            has_size = axis < len(leaf.shape) and leaf.shape[axis] is self.size
            if has_size != affects:
                has = "has" if has_size else "has not"
                raise CompileError(
                    f"FlexibleShapeDispatch: affects_output={affects}, but the result {leaf} {has}"
                    f" the size on axis {axis}"
                )
        return typed.ret_type

    def _bucket_condition(self, bucket: int, params: Sequence[Var]) -> Expr:
        first = params[self.options.inputs[0]]
        size = op.take(op.shape_of(first, "int64"), constant(self.options.axis, "int64"))
        # With padding a bucket takes smaller sizes as well.
        compare = op.less_equal if self.options.auto_pad else op.equal
        return compare(size, constant(bucket, "int64"))

    def _call_variant(self, one: GlobalVar, bucket: int, params: Sequence[Var], kind: Type) -> Expr:
        args: list[Expr] = list(params)
        for number in self.options.inputs:
            args[number] = self._to_bucket_size(params[number], bucket)
        result = one(*args)
        return _map_tensors(result, kind, self._to_dynamic_size)

    def _to_bucket_size(self, var: Var, bucket: int) -> Expr:
        """Pad (with auto_pad) or reshape an input to a bucket's size."""
        kind, axis = var.type_annotation, self.options.axis
        assert isinstance(kind, TensorType)
        data: Expr = var
        if self.options.auto_pad:
            widths: list[tuple[Dim, Dim]] = [(0, 0)] * len(kind.shape)
            widths[axis] = (0, as_dim(bucket) - self.size)
            data = op.nn.pad(var, widths, constant(self.options.pad_value, kind.dtype))
        shape = [*kind.shape[:axis], as_dim(bucket), *kind.shape[axis + 1 :]]
        # The reshape asserts the static size, so that the variant gets a kernel of its own.
        return op.reshape(data, shape, allowzero=True)

    def _to_dynamic_size(self, data: Expr, kind: TensorType) -> Expr:
        """Slice and reshape a variant's result to the dynamic size."""
        if self.options.auto_pad and self.options.affects_output:
            # The rows that were added to the input are cut off.
            data = op.strided_slice(data, [0], [self.size], axes=[self.options.axis])
        return op.reshape(data, kind.shape, allowzero=True)


def _tensor_leaves(kind: Type) -> list[TensorType]:
    if isinstance(kind, TensorType):
        return [kind]
    if not isinstance(kind, TupleType):
        raise CompileError(f"FlexibleShapeDispatch: results must be tensors, got {kind}")
    return [leaf for field in kind.fields for leaf in _tensor_leaves(field)]


def _map_tensors(value: Expr, kind: Type, change: Callable[[Expr, TensorType], Expr]) -> Expr:
    """Map a function over every tensor of a nested tuple."""
    if isinstance(kind, TensorType):
        return change(value, kind)
    assert isinstance(kind, TupleType)
    fields = [_map_tensors(TupleGetItem(value, i), k, change) for i, k in enumerate(kind.fields)]
    return Tuple(tuple(fields))
