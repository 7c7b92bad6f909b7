"""The operator inventory: one function per computation, over tensor expressions.

Anchors of schedule rules carry a tag: elemwise, broadcast, injective, concatenate, reduce, softmax, pool, layer_norm,
dense, dense_pack, matmul, batch_matmul, conv2d, conv2d_nhwc_pack, depthwise_conv2d_nhwc, group_conv2d_nhwc_pack, ...
"""

from ekiden.topi import image as image, nn as nn
from ekiden.topi.broadcast import (
    add as add,
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    broadcast_to as broadcast_to,
    divide as divide,
    equal as equal,
    floor_divide as floor_divide,
    floor_mod as floor_mod,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    logical_and as logical_and,
    logical_or as logical_or,
    logical_xor as logical_xor,
    maximum as maximum,
    minimum as minimum,
    mod as mod,
    multiply as multiply,
    not_equal as not_equal,
    power as power,
    subtract as subtract,
    where as where,
)
from ekiden.topi.create import (
    arange as arange,
    constant as constant,
    full as full,
    ndarray_size as ndarray_size,
    shape_of as shape_of,
)
from ekiden.topi.elementwise import (
    abs as abs,
    cast as cast,
    ceil as ceil,
    clip as clip,
    copy as copy,
    cos as cos,
    erf as erf,
    exp as exp,
    floor as floor,
    isinf as isinf,
    isnan as isnan,
    log as log,
    logical_not as logical_not,
    negative as negative,
    round as round,
    rsqrt as rsqrt,
    sigmoid as sigmoid,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    tanh as tanh,
)
from ekiden.topi.index import gather as gather, gather_nd as gather_nd, one_hot as one_hot, take as take
from ekiden.topi.reduce import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    sum as sum,
)
from ekiden.topi.scan import cumsum as cumsum
from ekiden.topi.transform import (
    concatenate as concatenate,
    layout_transform as layout_transform,
    repeat as repeat,
    reshape as reshape,
    reverse as reverse,
    split as split,
    stack as stack,
    strided_slice as strided_slice,
    tile as tile,
    transpose as transpose,
)
