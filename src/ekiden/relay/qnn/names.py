"""Lazy exports of `ekiden.relay.qnn`, imported on first use."""

from ekiden.relay.qnn import affine_rules, op, transform
from ekiden.relay.qnn.config import requantize_config
from ekiden.relay.qnn.op import *  # noqa: F403

__all__ = ["affine_rules", "op", "requantize_config", "transform"]
__all__ += op.__all__
