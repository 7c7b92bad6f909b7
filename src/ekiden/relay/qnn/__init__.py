"""QNN dialect (quantised operators) at TVM's place: `relay.qnn.op`, whose names are also exported
here, and `relay.qnn.transform`.

Its operators say what a quantised model means; `qnn.transform.CanonicalizeOps`, the first pass of
the pipeline, writes each as integer arithmetic in ordinary operators.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.relay.qnn.names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="names")
