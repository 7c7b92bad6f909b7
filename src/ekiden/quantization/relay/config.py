"""Configuration of `relay.quantize`: a stack of configurations, innermost last (TVM's `qconfig`).

with relay.quantize.qconfig(calibrate_mode="kl_divergence", skip_conv_layers=None):
    module = relay.quantize.quantize(module, params, dataset)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from ekiden.quantization.range_calibration import RANGE_METHODS
from ekiden.relay.qnn.config import ROUNDING_MODES
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["QAnnotateKind", "QConfig", "current_qconfig", "kind2str", "qconfig"]

CALIBRATE_MODES = {"global_scale": "", "kl_divergence": "entropy"} | {
    name: name for name in RANGE_METHODS
}
"""Ways to choose the range of an input -> the row of METHODS that finds it in data; "": none."""
WEIGHT_SCALES = ("power2", "max")
PARTITION_MODES = ("disabled", "enabled", "fully_integral")


class QAnnotateKind:
    """Kind of a quantized value, by TVM's numbers."""

    IDENTITY, INPUT, WEIGHT, ACTIVATION = range(4)


_KIND_NAMES = {
    number: name.lower() for name, number in vars(QAnnotateKind).items() if not name.startswith("_")
}


def kind2str(kind: int) -> str:
    """Return the name of a `QAnnotateKind` number."""
    return _KIND_NAMES[kind]


@dataclass(frozen=True, slots=True)
class QConfig:
    """Configuration fields, created by `qconfig`, which rejects other names.

    Raises InputError for values that a field cannot have here: integers have 8 bits, of which
    `nbit_input` and `nbit_weight` may use fewer, and sums 32.
    """

    nbit_input: int = 8
    nbit_weight: int = 8
    nbit_activation: int = 32
    dtype_input: str = "int8"
    dtype_weight: str = "int8"
    dtype_activation: str = "int32"
    calibrate_mode: str = "global_scale"
    """A word of MODES: where the ranges of inputs come from."""
    global_scale: float = 8.0
    """The range of every input where the mode is "global_scale"."""
    weight_scale: str = "power2"
    """The range of a weight: its largest element, or the next power of two above that."""
    skip_dense_layer: bool = True
    skip_conv_layers: Sequence[int] | None = (0,)
    """Convolutions that stay floats, by number in the order of evaluation."""
    do_simulation: bool = False
    """Whether the result keeps `simulated_quantize`, in floats."""
    round_for_shift: bool = True
    debug_enabled_ops: Sequence[str] | None = None
    """The operators that alone may become integers, by name; None: all."""
    rounding: str = "UPWARD"
    """Of values midway between two whole numbers, as in `requantize_config`."""
    calibrate_chunk_by: int = -1
    """How many values are looked at in one run of the data; -1: all of them."""
    partition_conversions: str = "disabled"

    def __post_init__(self) -> None:
        """Validate the fields. Raises InputError."""
        for name, allowed in _ALLOWED_FIELD_VALUES.items():
            value = getattr(self, name)
            if value not in allowed:
                choices = ", ".join(map(repr, allowed))
                raise InputError(f"qconfig: '{name}' must be one of {choices}, got {value!r}")
        if not self.global_scale > 0.0:
            raise InputError(f"qconfig: 'global_scale' must be positive, got {self.global_scale!r}")
        if self.calibrate_chunk_by != -1 and self.calibrate_chunk_by < 1:
            value = self.calibrate_chunk_by
            raise InputError(f"qconfig: 'calibrate_chunk_by' must be positive or -1, got {value}")

    def guard(self, ref_call: Any) -> bool:  # noqa: ANN401 - any call of an operator
        """Return whether a call's operator may be quantized."""
        return self.debug_enabled_ops is None or ref_call.op.name in self.debug_enabled_ops

    def get_nbit_by_kind(self, kind: int) -> int:
        """Return the bit width of a kind of value."""
        return int(getattr(self, f"nbit_{kind2str(kind)}"))

    def get_dtype_by_kind(self, kind: int) -> str:
        """Return the dtype of a kind of value."""
        return str(getattr(self, f"dtype_{kind2str(kind)}"))

    def __enter__(self) -> QConfig:
        """Push this configuration, which is current inside the `with` block."""
        _CONFIG_STACK.set((*_CONFIG_STACK.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the enclosing configuration."""
        _CONFIG_STACK.set(_CONFIG_STACK.get()[:-1])


_ALLOWED_FIELD_VALUES: dict[str, Sequence[object]] = {
    "nbit_input": range(2, 9), "nbit_weight": range(2, 9), "nbit_activation": (32,),
    "dtype_input": ("int8",), "dtype_weight": ("int8",), "dtype_activation": ("int32",),
    "calibrate_mode": tuple(CALIBRATE_MODES), "weight_scale": WEIGHT_SCALES,
    "round_for_shift": (True,),
    "rounding": ROUNDING_MODES, "partition_conversions": PARTITION_MODES,
}  # fmt: skip
_CONFIG_STACK: ContextVar[tuple[QConfig, ...]] = ContextVar("qconfig", default=())


def current_qconfig() -> QConfig:
    """Return the innermost configuration."""
    stack = _CONFIG_STACK.get()
    return stack[-1] if stack else QConfig()


def qconfig(**options: object) -> QConfig:
    """Return a configuration for `with`, from fields of `QConfig` by TVM's names and defaults.
    Raises InputError for an unknown name, which TVM would ignore.
    """
    names = [config_field.name for config_field in fields(QConfig)]
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(names)}"
            raise InputError(f"qconfig: no field is named '{name}'{hint}")
    return QConfig(**options)  # type: ignore[arg-type]  # checked by QConfig
