"""The operator inventory: one function per computation, over tensor expressions.

Names and signatures are TVM's, semantics NumPy's. Each family is a module, whose `__all__` is the
one list of its names; `operators()` is the table of all. Operators whose result's size depends on
data (unique, argwhere, non-maximum suppression) give a padded result and how much of it counts.

Anchors of schedule rules carry a tag: elemwise, broadcast, injective, concatenate, reduce, softmax,
pool, layer_norm, dense, dense_pack, matmul, batch_matmul, conv2d, conv_nhwc_pack,
depthwise_conv_nhwc, conv_transpose_pack, ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ekiden.te import tensor as _tensor
from ekiden.topi import (
    broadcast,
    create,
    elementwise,
    image,
    index,
    linalg,
    ml,
    nn,
    products,
    random,
    reduce,
    rule,
    sampling,
    scan,
    scattering,
    signal,
    slice,
    sorting,
    sparse,
    testing,
    text,
    transcendental,
    transform,
    vision,
)
from ekiden.topi.broadcast import *  # noqa: F403
from ekiden.topi.create import *  # noqa: F403
from ekiden.topi.elementwise import *  # noqa: F403
from ekiden.topi.index import *  # noqa: F403
from ekiden.topi.products import *  # noqa: F403
from ekiden.topi.reduce import *  # noqa: F403
from ekiden.topi.scan import *  # noqa: F403
from ekiden.topi.scattering import *  # noqa: F403
from ekiden.topi.signal import *  # noqa: F403
from ekiden.topi.slice import *  # noqa: F403
from ekiden.topi.sorting import *  # noqa: F403
from ekiden.topi.transcendental import *  # noqa: F403
from ekiden.topi.transform import *  # noqa: F403

_FAMILIES = (
    broadcast, create, elementwise, index, products, reduce, scan, scattering, signal, slice,
    sorting, transcendental, transform,
)  # fmt: skip
"""Modules whose names are those of this one."""
_NAMESPACES = {
    "image": image,
    "linalg": linalg,
    "ml": ml,
    "nn": nn,
    "random": random,
    "sampling": sampling,
    "sparse": sparse,
    "text": text,
    "vision": vision,
}
"""Modules that users name: topi.nn.conv2d."""


def operators() -> dict[str, Callable[..., Any]]:
    """Every operator by its name within topi: "add", "nn.conv2d"."""
    found = {name: getattr(m, name) for m in _FAMILIES for name in m.__all__}
    for prefix, module in _NAMESPACES.items():
        found.update({f"{prefix}.{name}": getattr(module, name) for name in module.__all__})
    return found


_tensor.OPERATORS.update({n: operators()[n] for n in (
    "add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "negative", "cast",
    "less", "less_equal", "greater", "greater_equal",
)})  # fmt: skip

__all__ = ["operators", "rule", "testing", *_NAMESPACES]
__all__ += [name for family in _FAMILIES for name in family.__all__]
