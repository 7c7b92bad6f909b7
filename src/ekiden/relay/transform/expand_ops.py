"""Write operators that have no kernels of their own as others.

nn.max_pool2d_grad(%g, %x)            ->  the gradient of nn.max_pool2d(%x)
nn.avg_pool2d_grad(%g, %x)            ->  the gradient of nn.avg_pool2d(%x)
nn.conv2d_backward_weight(%g, %x)     ->  that of nn.conv2d(%x, %w) for %w
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import get
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Var
from ekiden.relay.gradient import GRADIENTS
from ekiden.relay.op.nn.backward import Conv2DBackwardWeightAttrs
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.transform.calls import Rewrite, call_pass
from ekiden.relay.transform.scopes import infer_here
from ekiden.runtime.errors import CompileError


def _gradient(forward: Call, grad: RelayExpr, place: int, name: str) -> RelayExpr:
    """The gradient of a call for one of its arguments. Raises CompileError for `name` where it is
    not known."""
    infer_here(forward)
    try:
        found = GRADIENTS[forward.op.name](forward, grad)[place]  # type: ignore[attr-defined]
    except ValueError as error:
        raise CompileError(f"{name}: {error}") from error
    assert found is not None
    return found


def _pool(name: str) -> Rewrite:
    def rewrite(call: Call) -> RelayExpr:
        grad, data = call.args
        return _gradient(Call(get(name), (data,), call.attrs), grad, 0, f"{name}_grad")

    return rewrite


def _weight(call: Call) -> RelayExpr:
    grad, data = call.args
    attrs = call.attrs
    assert isinstance(attrs, Conv2DBackwardWeightAttrs)
    names = Conv2DAttrs.__dataclass_fields__
    plain = Conv2DAttrs(**{name: attrs[name] for name in names})  # type: ignore[arg-type]
    weight = Var("weight", call.checked_type)  # of which the type alone is read
    weight.set_checked_type(call.checked_type)
    forward = Call(get("nn.conv2d"), (data, weight), plain)
    return _gradient(forward, grad, 1, "nn.conv2d_backward_weight")


TABLE: dict[str, Rewrite] = {
    "nn.max_pool2d_grad": _pool("nn.max_pool2d"),
    "nn.avg_pool2d_grad": _pool("nn.avg_pool2d"),
    "nn.conv2d_backward_weight": _weight,
}


def ExpandOps() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return call_pass("ExpandOps", 0, TABLE)
