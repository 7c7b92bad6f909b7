"""The dialect of quantised tensors, at TVM's place: `relay.qnn.op`, whose names stand here too, and
`relay.qnn.transform`.

Its operators say what a quantised model means; `qnn.transform.CanonicalizeOps`, the first pass of
the pipeline, writes each as integer arithmetic in ordinary operators.
"""

from ekiden.relay.qnn import affine_rules, op, transform
from ekiden.relay.qnn.config import requantize_config
from ekiden.relay.qnn.op import *  # noqa: F403

__all__ = ["affine_rules", "op", "requantize_config", "transform"]
__all__ += op.__all__
