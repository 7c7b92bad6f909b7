"""TOPI: the operator inventory; one function per computation, over tensor expressions.

Names and signatures are TVM's, semantics NumPy's. Each family is a module, whose `__all__` is the
one list of its names; `operators()` is the table of all. Operators with a data-dependent result
size (unique, argwhere, non-maximum suppression) return a padded result and its valid count.

Anchors of schedule rules carry a tag: elemwise, broadcast, injective, concatenate, reduce, softmax,
pool, layer_norm, dense, dense_pack, matmul, batch_matmul, conv2d, conv_nhwc_pack,
depthwise_conv_nhwc, conv_transpose_pack, ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach, exported_names
from ekiden.te import tensor as _tensor
from ekiden.topi._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.topi import image, linalg, ml, nn, random, sampling, sparse, testing, text, vision
    from ekiden.topi.broadcast import *  # noqa: F403
    from ekiden.topi.contractions import *  # noqa: F403
    from ekiden.topi.create import *  # noqa: F403
    from ekiden.topi.elementwise import *  # noqa: F403
    from ekiden.topi.index import *  # noqa: F403
    from ekiden.topi.reduce import *  # noqa: F403
    from ekiden.topi.scan import *  # noqa: F403
    from ekiden.topi.scattering import *  # noqa: F403
    from ekiden.topi.signal import *  # noqa: F403
    from ekiden.topi.slice import *  # noqa: F403
    from ekiden.topi.sorting import *  # noqa: F403
    from ekiden.topi.transcendental import *  # noqa: F403
    from ekiden.topi.transform import *  # noqa: F403

_OPERATOR_NAMESPACES = (
    "image",
    "linalg",
    "ml",
    "nn",
    "random",
    "sampling",
    "sparse",
    "text",
    "vision",
)
"""Modules whose operators users access by a dotted name, such as topi.nn.conv2d."""

__all__ = [
    "image", "linalg", "ml", "nn", "operators", "random", "sampling", "sparse", "testing",
    "text", "vision",
]  # fmt: skip
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)


def operators() -> dict[str, Callable[..., Any]]:
    """Return every operator by its name within topi: "add", "nn.conv2d"."""
    own = (name for home, names in EXPORTED_NAMES.items() if home for name in names.split())
    by_name = {name: _import_operator(name) for name in own}
    for prefix in _OPERATOR_NAMESPACES:
        module = _import_operator(prefix)
        by_name.update({f"{prefix}.{name}": getattr(module, name) for name in module.__all__})
    return by_name


def _import_operator(name: str) -> Any:  # noqa: ANN401
    return getattr(sys.modules[__name__], name)


_tensor.TENSOR_OPERATORS.update({n: _import_operator(n) for n in (
    "add", "subtract", "multiply", "divide", "floor_divide", "floor_mod", "negative", "cast",
    "less", "less_equal", "greater", "greater_equal",
)})  # fmt: skip
