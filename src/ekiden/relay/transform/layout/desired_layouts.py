"""ConvertLayout to user-specified layouts per operator.

    ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"], "nn.max_pool2d": ["NHWC"]})

The layouts are those of the data, then of the weight; "default" is the one that goes with the
data's. Calls of these operators are changed, all others follow (see layout_rewriter). A call whose
axes a layout cannot split, as three channels by 8, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, Op, get
from ekiden.ir.prim import const, is_const
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call
from ekiden.relay.transform.infer_layout_utils import axis_index, block_factor
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.transform.layout.layout_rewriter import LayoutRewriter, tensor_infos
from ekiden.runtime.errors import CompileError
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.layout import axis_index as required_axis_index

CONVERT_OP_LAYOUT_ATTR = "FTVMConvertOpLayout"
DesiredLayouts = Mapping[str, Sequence[str]]


class LayoutConfig:
    """Context in which ConvertLayout skips the convolutions numbered in `skip_layers`, in program
    order (TVM's name).
    """

    current: ClassVar[LayoutConfig | None] = None

    def __init__(self, skip_layers: Sequence[int] | None = None) -> None:
        self.skip_counter = 0
        self.skip_layers = tuple(skip_layers or ())
        self._outer_config: LayoutConfig | None = None

    def check_skip(self) -> bool:
        """Return whether the next convolution is skipped."""
        self.skip_counter += 1
        return self.skip_counter - 1 in self.skip_layers

    def reset(self) -> None:
        """Reset the counter, and skip nothing."""
        self.skip_counter, self.skip_layers = 0, ()

    def __enter__(self) -> LayoutConfig:
        # Kept for the end of the scope: scopes can be nested.
        self._outer_config, LayoutConfig.current = LayoutConfig.current, self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        LayoutConfig.current = self._outer_config


def _default_weight_layout(call: Call, attrs: Any, data: str) -> str:  # noqa: ANN401
    assert isinstance(call.op, Op)
    defaults = call.op.definition.weight_layouts
    if data not in defaults:
        names = " or ".join(defaults)
        raise CompileError(
            f"ConvertLayout: {call.op.name}: the default weight layout is known for {names},"
            f" got {data!r}; name one"
        )
    default_layout = defaults[data]
    # Of depthwise weights TVM's default puts O before I.
    is_depthwise = (
        default_layout == "HWIO" and "I" in attrs.kernel_layout and _is_depthwise(call, attrs)
    )
    return "HWOI" if is_depthwise and not hasattr(attrs, "output_padding") else default_layout


def _is_depthwise(call: Call, attrs: Any) -> bool:  # noqa: ANN401
    """Return whether a convolution is depthwise: one group per channel."""
    kind = call.args[0].checked_type
    assert isinstance(kind, TensorType)
    channels = kind.shape[required_axis_index(attrs.data_layout, "C")]
    return attrs.groups > 1 and is_const(channels, attrs.groups)


def _attrs_for_layouts(call: Call, attrs: Any, layouts: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the attributes of a call with the desired layouts."""
    assert isinstance(call.op, Op)
    name, data = call.op.name, str(layouts[0])
    if data == "default":
        raise CompileError(f"ConvertLayout: {name}: the layout of the data cannot be 'default'")
    if call.op.definition.weight_layouts:
        if len(layouts) != 2:
            raise CompileError(
                f"ConvertLayout: {name}: expected layouts of data and weight, got {list(layouts)}"
            )
        weight = str(layouts[1])
        if weight == "default":
            weight = _default_weight_layout(call, attrs, data)
        return attrs.with_fields(data_layout=data, kernel_layout=weight)
    changes = {"layout": data, **({"out_layout": data} if hasattr(attrs, "out_layout") else {})}
    return attrs.with_fields(**changes)


def _are_blocks_divisible(call: Call, before: Any, after: Any) -> bool:  # noqa: ANN401
    """Return whether the blocks of the new layouts divide their extents.

    A picture's three channels are not by 8, and its convolution stays as it is.
    """
    fields = [
        field_name
        for field_name in ("layout", "data_layout", "kernel_layout")
        if hasattr(after, field_name)
    ]
    for arg, field in zip(call.args, fields, strict=False):
        kind, old = arg.checked_type, getattr(before, field)
        assert isinstance(kind, TensorType)
        for letter, size in parse_layout(getattr(after, field)):
            position = axis_index(old, letter.upper())
            # Whole axes are not split.
            if letter.isupper() or position < 0:
                continue
            extent = kind.shape[position] * (block_factor(old, letter) or 1)
            if not prove_equal(extent % size, const(0)):
                return False
    return True


def convert_to_layouts(module: IRModule, desired: DesiredLayouts) -> IRModule:
    """Convert the calls of the operators named in `desired` to their layouts.

    Raises:
        CompileError: For an operator that has no layout.
    """
    user_rules = OP_ATTRS.get(CONVERT_OP_LAYOUT_ATTR, {})
    for name in desired:
        row = get(name).definition
        # Errors are raised before anything is rewritten.
        fields = getattr(row.attrs, "__dataclass_fields__", {})
        if name not in user_rules and not row.weight_layouts and "layout" not in fields:
            raise CompileError(f"ConvertLayout: {name} has no layout")

    def convert_call(call: Call, attrs: Any, args: Sequence[RelayExpr]) -> RelayExpr | None:  # noqa: ANN401
        """Return the call in the desired layouts; None to leave it unchanged.

        A user's own converter comes first.
        """
        assert isinstance(call.op, Op)
        name = call.op.name
        if name not in desired:
            return None
        layouts = list(map(str, desired[name]))
        user_rule: Any = user_rules.get(name)
        if user_rule is not None:
            infos = tensor_infos([a.checked_type for a in call.args])
            return user_rule(attrs, list(args), infos, layouts)  # type: ignore[no-any-return]
        new_attrs = _attrs_for_layouts(call, attrs, layouts)
        # Before the count: a convolution that cannot be converted is not one to skip.
        if not _are_blocks_divisible(call, attrs, new_attrs):
            return None
        config = LayoutConfig.current
        if config is not None and call.op.definition.weight_layouts and config.check_skip():
            return None
        return Call(call.op, tuple(args), new_attrs, span=call.span)

    return map_functions(
        module,
        lift_body_rewrite(
            lambda body: LayoutRewriter(convert_call, CONVERT_OP_LAYOUT_ATTR).run(body)
        ),
    )
