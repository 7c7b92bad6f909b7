"""QNN dialect (quantised operators), under TVM's module names `relay.qnn.op` and
`relay.qnn.transform`.

Its operators say what a quantised model means; `qnn.transform.CanonicalizeOps`, the first pass of
the pipeline, writes each as integer arithmetic in ordinary operators.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.relay.qnn.names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="names")
