"""The operator inventory: one function per computation, over tensor expressions.

Anchors of schedule rules carry a tag: elemwise, broadcast, injective, concatenate, reduce, softmax,
pool, layer_norm, dense, dense_pack, matmul, batch_matmul, conv2d, conv2d_nhwc_pack,
depthwise_conv2d_nhwc, group_conv2d_nhwc_pack, ...
"""

from ekiden.topi import image as image
from ekiden.topi import nn as nn
from ekiden.topi.broadcast import (
    add as add,
)
from ekiden.topi.broadcast import (
    bitwise_and as bitwise_and,
)
from ekiden.topi.broadcast import (
    bitwise_or as bitwise_or,
)
from ekiden.topi.broadcast import (
    bitwise_xor as bitwise_xor,
)
from ekiden.topi.broadcast import (
    broadcast_to as broadcast_to,
)
from ekiden.topi.broadcast import (
    divide as divide,
)
from ekiden.topi.broadcast import (
    equal as equal,
)
from ekiden.topi.broadcast import (
    floor_divide as floor_divide,
)
from ekiden.topi.broadcast import (
    floor_mod as floor_mod,
)
from ekiden.topi.broadcast import (
    greater as greater,
)
from ekiden.topi.broadcast import (
    greater_equal as greater_equal,
)
from ekiden.topi.broadcast import (
    less as less,
)
from ekiden.topi.broadcast import (
    less_equal as less_equal,
)
from ekiden.topi.broadcast import (
    logical_and as logical_and,
)
from ekiden.topi.broadcast import (
    logical_or as logical_or,
)
from ekiden.topi.broadcast import (
    logical_xor as logical_xor,
)
from ekiden.topi.broadcast import (
    maximum as maximum,
)
from ekiden.topi.broadcast import (
    minimum as minimum,
)
from ekiden.topi.broadcast import (
    mod as mod,
)
from ekiden.topi.broadcast import (
    multiply as multiply,
)
from ekiden.topi.broadcast import (
    not_equal as not_equal,
)
from ekiden.topi.broadcast import (
    power as power,
)
from ekiden.topi.broadcast import (
    subtract as subtract,
)
from ekiden.topi.broadcast import (
    where as where,
)
from ekiden.topi.create import (
    arange as arange,
)
from ekiden.topi.create import (
    constant as constant,
)
from ekiden.topi.create import (
    full as full,
)
from ekiden.topi.create import (
    ndarray_size as ndarray_size,
)
from ekiden.topi.create import (
    shape_of as shape_of,
)
from ekiden.topi.elementwise import (
    abs as abs,
)
from ekiden.topi.elementwise import (
    cast as cast,
)
from ekiden.topi.elementwise import (
    ceil as ceil,
)
from ekiden.topi.elementwise import (
    clip as clip,
)
from ekiden.topi.elementwise import (
    copy as copy,
)
from ekiden.topi.elementwise import (
    cos as cos,
)
from ekiden.topi.elementwise import (
    erf as erf,
)
from ekiden.topi.elementwise import (
    exp as exp,
)
from ekiden.topi.elementwise import (
    floor as floor,
)
from ekiden.topi.elementwise import (
    isinf as isinf,
)
from ekiden.topi.elementwise import (
    isnan as isnan,
)
from ekiden.topi.elementwise import (
    log as log,
)
from ekiden.topi.elementwise import (
    logical_not as logical_not,
)
from ekiden.topi.elementwise import (
    negative as negative,
)
from ekiden.topi.elementwise import (
    round as round,
)
from ekiden.topi.elementwise import (
    rsqrt as rsqrt,
)
from ekiden.topi.elementwise import (
    sigmoid as sigmoid,
)
from ekiden.topi.elementwise import (
    sign as sign,
)
from ekiden.topi.elementwise import (
    sin as sin,
)
from ekiden.topi.elementwise import (
    sqrt as sqrt,
)
from ekiden.topi.elementwise import (
    tanh as tanh,
)
from ekiden.topi.index import gather as gather
from ekiden.topi.index import gather_nd as gather_nd
from ekiden.topi.index import one_hot as one_hot
from ekiden.topi.index import take as take
from ekiden.topi.reduce import (
    all as all,
)
from ekiden.topi.reduce import (
    any as any,
)
from ekiden.topi.reduce import (
    argmax as argmax,
)
from ekiden.topi.reduce import (
    argmin as argmin,
)
from ekiden.topi.reduce import (
    max as max,
)
from ekiden.topi.reduce import (
    mean as mean,
)
from ekiden.topi.reduce import (
    min as min,
)
from ekiden.topi.reduce import (
    prod as prod,
)
from ekiden.topi.reduce import (
    sum as sum,
)
from ekiden.topi.scan import cumsum as cumsum
from ekiden.topi.transform import (
    concatenate as concatenate,
)
from ekiden.topi.transform import (
    layout_transform as layout_transform,
)
from ekiden.topi.transform import (
    repeat as repeat,
)
from ekiden.topi.transform import (
    reshape as reshape,
)
from ekiden.topi.transform import (
    reverse as reverse,
)
from ekiden.topi.transform import (
    split as split,
)
from ekiden.topi.transform import (
    stack as stack,
)
from ekiden.topi.transform import (
    strided_slice as strided_slice,
)
from ekiden.topi.transform import (
    tile as tile,
)
from ekiden.topi.transform import (
    transpose as transpose,
)
