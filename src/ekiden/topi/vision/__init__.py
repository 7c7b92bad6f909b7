"""Object detection operators: anchor boxes, region pooling, non-maximum suppression."""

from ekiden.topi.vision import anchors as _anchors
from ekiden.topi.vision import nms as _nms
from ekiden.topi.vision import roi_pooling as _regions
from ekiden.topi.vision.anchors import *  # noqa: F403
from ekiden.topi.vision.nms import *  # noqa: F403
from ekiden.topi.vision.roi_pooling import *  # noqa: F403

__all__ = [*_anchors.__all__, *_nms.__all__, *_regions.__all__]
