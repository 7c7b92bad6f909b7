"""The dialect of quantised tensors, at TVM's place: `relay.qnn.op`, `relay.qnn.transform`.

Its operators say what a quantised model means; `qnn.transform.CanonicalizeOps`, the first pass of
the pipeline, writes each as integer arithmetic in ordinary operators.
"""

from ekiden.relay.qnn import affine_rules, op, transform
from ekiden.relay.qnn.config import requantize_config

__all__ = ["affine_rules", "op", "requantize_config", "transform"]
