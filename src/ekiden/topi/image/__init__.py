"""Image operators: resizing, data-dependent sampling, morphology."""

from ekiden.topi.image import resize as _resize
from ekiden.topi.image import sample as _sample
from ekiden.topi.image.resize import *  # noqa: F403
from ekiden.topi.image.sample import *  # noqa: F403

__all__ = [*_resize.__all__, *_sample.__all__]
