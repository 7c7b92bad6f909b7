"""Models of one node that mostly are invalid: with inputs too few or too many, of wrong ranks,
types and lengths, attributes of wrong kinds and absurd sizes. The same number gives the same model.

    python tests/frontend/node_mutants.py --count 20000 --first 0

prints those at which the import broke, instead of refusing them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ekiden.frontend.common.graph_walk import ConversionError
from ekiden.frontend.onnx import from_onnx
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.frontend.onnx.signatures import FormalAttribute, OperatorSignature, find_signature
from ekiden.runtime.errors import EkidenError, InternalError

DOMAINS = {"": 22, "ai.onnx.ml": 5, "com.microsoft": 1, "ai.onnx.preview.training": 1}
OLDER = (1, 7, 9, 10, 11, 13, 18)
ABSURD = (-1, 0, 3, 7, 2**31, 2**40, -(2**63), 2**63 - 1)
KINDS = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL,
         TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT16, TensorProto.DOUBLE)  # fmt: skip
WORDS = ("", "constant", "linear", "SAME_UPPER", "LEQ", "ij,jk->ik", "forward", "NONE", "x")
PYTHONS = re.compile(
    r"zip\(\)|to unpack|index out of range|has no attribute|positional argument|by zero|modulo|"
    r"cannot reshape array|could not be broadcast|NoneType|not supported between|object is not|"
    r"unsupported operand|must be real number|KeyError|IndexError|Traceback"
)
"""What Python and NumPy say by themselves: no message of the import may."""


@cache
def operators() -> tuple[tuple[str, str], ...]:
    """Return (domain, operator) of all that have a converter and a signature."""
    CONVERTER_TABLE.load_all()
    known = (k for k in CONVERTER_TABLE if find_signature(*k, DOMAINS.get(k[0], 1)) is not None)
    return tuple(sorted(known))


def synthetic(number: int) -> onnx.ModelProto:
    """Return a model of one node that is drawn from the signature of an operator."""
    rng = Random(number)
    domain, name = operators()[number % len(operators())]
    version = rng.choice(OLDER) if not domain and rng.random() < 0.3 else DOMAINS.get(domain, 1)
    known = find_signature(domain, name, version)
    assert known is not None
    wrong = rng.random() < 0.2
    count = sum(p.repeats is None and not p.is_optional for p in known.inputs)
    count = rng.randrange(len(known.inputs) + 2) if wrong else rng.randint(
        min(count, len(known.inputs)), len(known.inputs)
    )  # fmt: skip
    names = ["" if rng.random() < 0.05 else f"i{n}" for n in range(count)]
    node = helper.make_node(name, names, [f"o{n}" for n in range(max(1, len(known.outputs)))])
    node.domain = domain
    node.attribute.extend(_attributes(rng, known))
    return _model(rng, node, {"": version, **DOMAINS} | {domain: version})


def _attributes(rng: Random, known: OperatorSignature) -> list[onnx.AttributeProto]:
    result = []
    for name, declared in known.attributes.items():
        if declared.kind in "gGTpy" or rng.random() > (0.95 if declared.is_required else 0.4):
            continue
        if rng.random() < 0.05:
            declared = FormalAttribute(rng.choice("ifsIFS"), False)
        result.append(helper.make_attribute(name, _attribute(rng, declared.kind)))
    return [a for a in result if a.type]


def _attribute(rng: Random, kind: str) -> object:
    count = rng.randrange(1, 6)
    match kind:
        case "i":
            return rng.choice(ABSURD) if rng.random() < 0.3 else rng.randrange(-2, 5)
        case "f":
            return rng.choice((0.0, 1.0, -1.0, 0.5, float("inf")))
        case "s":
            return rng.choice(WORDS)
        case "t":
            return numpy_helper.from_array(_array(rng, TensorProto.FLOAT), "t")
        case "I":
            return [rng.choice(ABSURD) if rng.random() < 0.1 else rng.randrange(-1, 4)
                    for _ in range(count)]  # fmt: skip
        case "F":
            return [rng.uniform(-2.0, 3.0) for _ in range(count)]
    return [rng.choice(WORDS) for _ in range(count)]


def _array(rng: Random, kind: int) -> np.ndarray:  # type: ignore[type-arg]
    shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 4)))]
    numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(-2, 5, shape)
    return numbers.astype(helper.tensor_dtype_to_np_dtype(kind))


def _model(rng: Random, node: onnx.NodeProto, versions: dict[str, int]) -> onnx.ModelProto:
    """Return a model of the node; its inputs are inputs of the model, or weights."""
    inputs, weights = [], []
    usual = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, rng.choice(KINDS)))
    rank = rng.choice((0, 1, 2, 3, 3, 4, 4, 4, 5))
    for at, name in enumerate(dict.fromkeys(filter(None, node.input))):
        kind = usual if rng.random() < 0.6 else rng.choice(KINDS[:3])
        if rng.random() < (0.1 if at == 0 else 0.5):
            weights.append(numpy_helper.from_array(_array(rng, kind), name))
            continue
        own = rank if rng.random() < 0.6 else rng.randrange(6)
        dims = [rng.choice((1, 2, 4, 4, 6, "n", None)) for _ in range(own)]
        inputs.append(helper.make_tensor_value_info(name, kind, dims))
    outputs = [helper.make_tensor_value_info(o, usual, None) for o in node.output if o]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def mutated(model: onnx.ModelProto, number: int) -> onnx.ModelProto:
    """Return a model of one node with one to three changes that mostly make it invalid."""
    rng = Random(number)
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    for _ in range(rng.randrange(1, 4)):
        rng.choice(CHANGES)(changed, rng)
    return changed


def _change_inputs(model: onnx.ModelProto, rng: Random) -> None:
    node = rng.choice(model.graph.node)
    match rng.randrange(4):
        case 0 if node.input:
            del node.input[rng.randrange(len(node.input))]
        case 1 if node.input:
            node.input[rng.randrange(len(node.input))] = ""
        case 2 if node.input:
            node.input.append(rng.choice(node.input))
        case 3 if len(node.input) > 1:
            names = rng.sample(list(node.input), len(node.input))
            node.input[:] = names


def _change_shape(model: onnx.ModelProto, rng: Random) -> None:
    tensors = [i.type.tensor_type for i in model.graph.input if i.type.HasField("tensor_type")]
    if not tensors:
        return
    kind = rng.choice(tensors)
    match rng.randrange(4):
        case 0 if kind.shape.dim:
            del kind.shape.dim[rng.randrange(len(kind.shape.dim))]
        case 1:
            kind.shape.dim.add().dim_value = rng.choice((1, 2, 3))
        case 2:
            del kind.shape.dim[:]
        case 3:
            kind.elem_type = rng.choice(KINDS)


def _change_attribute(model: onnx.ModelProto, rng: Random) -> None:
    node = rng.choice(model.graph.node)
    if not node.attribute:
        return
    attribute = rng.choice(node.attribute)
    match rng.randrange(5):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            changed = helper.make_attribute(attribute.name, _attribute(rng, rng.choice("ifsIFS")))
            attribute.CopyFrom(changed)
        case 2:
            for values in (attribute.ints, attribute.floats, attribute.strings):
                if values:
                    del values[-1:]
        case 3 if attribute.type == onnx.AttributeProto.INT:
            attribute.i = rng.choice(ABSURD)
        case 4:
            for values in (attribute.ints, attribute.floats, attribute.strings):
                if values:
                    values.append(rng.choice(values))


def _hold_input(model: onnx.ModelProto, rng: Random) -> None:
    """Make an input of the model a weight, of any shape."""
    tensors = [i for i in model.graph.input if i.type.HasField("tensor_type")]
    plain = [i for i in tensors if i.type.tensor_type.elem_type in KINDS]
    if plain:
        chosen = rng.choice(plain)
        array = _array(rng, chosen.type.tensor_type.elem_type)
        model.graph.initializer.append(numpy_helper.from_array(array, chosen.name))
        model.graph.input.remove(chosen)


CHANGES = (_change_inputs, _change_shape, _change_attribute, _hold_input)


def fault(model: onnx.ModelProto) -> str:
    """Say how the import of a model broke; nothing where it was refused, or done."""
    try:
        from_onnx(model)
    except (ConversionError, InternalError) as error:
        return f"{type(error).__name__}: {error}"
    except EkidenError as error:
        return f"says {str(error)!r}" if PYTHONS.search(str(error)) else ""
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return ""


def faults(numbers: Sequence[int]) -> list[str]:
    """Return a line for each synthetic model at which the import broke."""
    lines = ((n, fault(synthetic(n))) for n in numbers)
    return [f"{n} {operators()[n % len(operators())]}: {text}" for n, text in lines if text]


def main() -> None:
    """Print the faults of synthetic models."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    for line in faults(range(options.first, options.first + options.count)):
        print(line)


if __name__ == "__main__":
    main()
