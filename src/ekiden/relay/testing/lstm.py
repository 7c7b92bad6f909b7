"""Unrolled LSTM network (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.type import TupleType, tensor_type
from ekiden.relay.expr import Expr, Function, Tuple, Var
from ekiden.relay.op import add, multiply, nn, sigmoid, split, tanh, zeros
from ekiden.relay.scope_builder import ScopeBuilder
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

_PARAMETER_NAMES = ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")


def _cell_parameters(num_hidden: int, dtype: str, infix: str = "") -> list[Var]:
    weight = tensor_type((4 * num_hidden, num_hidden), dtype)
    bias = tensor_type((4 * num_hidden,), dtype)
    names = [name.replace("_", f"_{infix}", 1) for name in _PARAMETER_NAMES]
    return [Var(n, weight if n.endswith("weight") else bias) for n in names]


def lstm_cell(num_hidden: int, batch_size: int = 1, dtype: str = "float32") -> Function:
    """Return an LSTM cell (input, (h, c), weights and biases) -> (h', (h', c'))."""
    state = tensor_type((batch_size, num_hidden), dtype)
    inputs, states = Var("inputs", state), Var("states", TupleType((state, state)))
    params = _cell_parameters(num_hidden, dtype)
    i2h_weight, i2h_bias, h2h_weight, h2h_bias = params
    sb = ScopeBuilder()
    i2h = sb.let("i2h", nn.bias_add(nn.dense(inputs, i2h_weight), i2h_bias, axis=-1))
    h2h = sb.let("h2h", nn.bias_add(nn.dense(states[0], h2h_weight), h2h_bias, axis=-1))
    gates = sb.let("parts", split(add(i2h, h2h), indices_or_sections=4, axis=1))
    into, forget, out = (sb.let(f"gate_{i}", sigmoid(gates[i])) for i in (0, 1, 3))
    new_c = sb.let("c", add(multiply(forget, states[1]), multiply(into, tanh(gates[2]))))
    new_h = sb.let("h", multiply(out, tanh(new_c)))
    sb.ret(Tuple((new_h, Tuple((new_h, new_c)))))
    result = TupleType((state, TupleType((state, state))))
    return Function((inputs, states, *params), sb.get(), result)


def get_net(
    iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32"
) -> Function:
    """Return an LSTM unrolled over a number of steps.

    Each cell has an input ("data", "data1", ...) and parameters of its own.
    """
    state = tensor_type((batch_size, num_hidden), dtype)
    sb = ScopeBuilder()
    nothing = sb.let("zeros", zeros((batch_size, num_hidden), dtype))
    states: Expr = sb.let("init_states", Tuple((nothing, nothing)))
    out: Expr = nothing
    for i in range(iterations):
        cell = lstm_cell(num_hidden, batch_size, dtype)
        params = _cell_parameters(num_hidden, dtype, f"{i}_")
        data = Var(f"data{i or ''}", state)
        cell_result = sb.let(f"call_{i}", cell(data, states, *params))
        out, states = sb.let(f"out_{i}", cell_result[0]), sb.let(f"states_{i}", cell_result[1])
    sb.ret(out)
    return layers.closed(sb.get())


def get_workload(
    iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32"
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(iterations, num_hidden, batch_size, dtype))


__all__ = ["get_net", "get_workload", "lstm_cell"]
