"""Parameter initialisers and workload creation."""

from __future__ import annotations

import numpy as np

from ekiden import runtime
from ekiden.ir.dtype import to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.type_infer import infer_type

DATA_INPUT_NAME = "data"
"""Name of a network's input parameter."""


class Initializer:
    """Initialiser of a parameter by the suffix of its name; weights by subclasses."""

    def __call__(self, desc: str, arr: Array) -> None:
        """Set the elements of `arr`. Raises ValueError for a name of no known end."""
        if desc.endswith("weight"):
            arr[...] = self.weight(desc, arr.shape)
        elif desc.endswith(("bias", "beta", "mean")):
            arr[...] = 0
        elif desc.endswith(("gamma", "var")):
            arr[...] = 1
        else:
            raise ValueError(
                f"initialize {desc!r}: expected a name that ends with weight, bias, gamma, beta,"
                " mean or var"
            )

    def weight(self, desc: str, shape: tuple[int, ...]) -> Array | float:
        """Return the initial value of a weight."""
        raise NotImplementedError


class Xavier(Initializer):
    """Xavier (Glorot) uniform initialiser (Glorot and Bengio 2010).

    The fan is that of inputs ("in"), of outputs ("out"), or their mean ("avg").
    """

    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None:
        if rnd_type != "uniform" or factor_type not in ("avg", "in", "out"):
            raise ValueError(f"Xavier: no such kind: {rnd_type!r}, {factor_type!r}")
        self.factor_type = factor_type
        self.magnitude = float(magnitude)

    def weight(self, desc: str, shape: tuple[int, ...]) -> Array | float:
        """Return Xavier-uniform values from NumPy's global generator.

        Raises:
            ValueError: There are fewer than two dimensions.
        """
        if len(shape) < 2:
            raise ValueError(f"Xavier: {desc!r} must have 2 dimensions or more, got {shape}")
        window = float(np.prod(shape[2:]))
        fans = {"in": shape[1] * window, "out": shape[0] * window}
        fan = fans.get(self.factor_type, sum(fans.values()) / 2)
        scale = np.sqrt(self.magnitude / (window if "depthwise" in desc else fan))
        return np.random.uniform(-scale, scale, shape)


class Constant(Initializer):
    """Initialiser of every weight to 1 / (number of elements)."""

    def weight(self, desc: str, shape: tuple[int, ...]) -> Array | float:
        """Return one number for all elements."""
        return 1 / float(np.prod(shape))


def create_workload(
    net: Function, initializer: Initializer | None = None, seed: int = 0
) -> tuple[IRModule, dict[str, runtime.Tensor]]:
    """Return a module whose `main` is the network, and initialised values of all parameters except
    `data`.
    """
    module = infer_type(IRModule.from_expr(net))
    main = module["main"]
    assert isinstance(main, Function)
    np.random.seed(seed)
    fill = initializer if initializer is not None else Xavier()
    params: dict[str, runtime.Tensor] = {}
    for param in main.params:
        kind = param.checked_type
        is_data = param.name_hint.rstrip("0123456789") == DATA_INPUT_NAME
        if not is_data and isinstance(kind, TensorType):
            value = np.zeros(kind.concrete_shape, to_numpy(kind.dtype))
            fill(param.name_hint, value)
            params[param.name_hint] = runtime.tensor(value)
    return module, params


__all__ = ["Constant", "Initializer", "Xavier", "create_workload"]
