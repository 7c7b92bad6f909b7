"""The operators of Relay: each is declared once (see ekiden.ir.op) and called by the function of
its TVM name."""

from ekiden.ir.op import get as get
from ekiden.relay.op import image as image
from ekiden.relay.op import nn as nn
from ekiden.relay.op.broadcast import (
    add as add,
)
from ekiden.relay.op.broadcast import (
    bitwise_and as bitwise_and,
)
from ekiden.relay.op.broadcast import (
    bitwise_or as bitwise_or,
)
from ekiden.relay.op.broadcast import (
    bitwise_xor as bitwise_xor,
)
from ekiden.relay.op.broadcast import (
    divide as divide,
)
from ekiden.relay.op.broadcast import (
    equal as equal,
)
from ekiden.relay.op.broadcast import (
    floor_divide as floor_divide,
)
from ekiden.relay.op.broadcast import (
    floor_mod as floor_mod,
)
from ekiden.relay.op.broadcast import (
    greater as greater,
)
from ekiden.relay.op.broadcast import (
    greater_equal as greater_equal,
)
from ekiden.relay.op.broadcast import (
    less as less,
)
from ekiden.relay.op.broadcast import (
    less_equal as less_equal,
)
from ekiden.relay.op.broadcast import (
    logical_and as logical_and,
)
from ekiden.relay.op.broadcast import (
    logical_or as logical_or,
)
from ekiden.relay.op.broadcast import (
    logical_xor as logical_xor,
)
from ekiden.relay.op.broadcast import (
    maximum as maximum,
)
from ekiden.relay.op.broadcast import (
    minimum as minimum,
)
from ekiden.relay.op.broadcast import (
    mod as mod,
)
from ekiden.relay.op.broadcast import (
    multiply as multiply,
)
from ekiden.relay.op.broadcast import (
    not_equal as not_equal,
)
from ekiden.relay.op.broadcast import (
    power as power,
)
from ekiden.relay.op.broadcast import (
    subtract as subtract,
)
from ekiden.relay.op.broadcast import (
    where as where,
)
from ekiden.relay.op.create import (
    arange as arange,
)
from ekiden.relay.op.create import (
    full as full,
)
from ekiden.relay.op.create import (
    ndarray_size as ndarray_size,
)
from ekiden.relay.op.create import (
    ones as ones,
)
from ekiden.relay.op.create import (
    ones_like as ones_like,
)
from ekiden.relay.op.create import (
    shape_of as shape_of,
)
from ekiden.relay.op.create import (
    zeros as zeros,
)
from ekiden.relay.op.create import (
    zeros_like as zeros_like,
)
from ekiden.relay.op.elementwise import (
    abs as abs,
)
from ekiden.relay.op.elementwise import (
    cast as cast,
)
from ekiden.relay.op.elementwise import (
    ceil as ceil,
)
from ekiden.relay.op.elementwise import (
    clip as clip,
)
from ekiden.relay.op.elementwise import (
    copy as copy,
)
from ekiden.relay.op.elementwise import (
    cos as cos,
)
from ekiden.relay.op.elementwise import (
    erf as erf,
)
from ekiden.relay.op.elementwise import (
    exp as exp,
)
from ekiden.relay.op.elementwise import (
    floor as floor,
)
from ekiden.relay.op.elementwise import (
    isinf as isinf,
)
from ekiden.relay.op.elementwise import (
    isnan as isnan,
)
from ekiden.relay.op.elementwise import (
    log as log,
)
from ekiden.relay.op.elementwise import (
    logical_not as logical_not,
)
from ekiden.relay.op.elementwise import (
    negative as negative,
)
from ekiden.relay.op.elementwise import (
    round as round,
)
from ekiden.relay.op.elementwise import (
    rsqrt as rsqrt,
)
from ekiden.relay.op.elementwise import (
    sigmoid as sigmoid,
)
from ekiden.relay.op.elementwise import (
    sign as sign,
)
from ekiden.relay.op.elementwise import (
    sin as sin,
)
from ekiden.relay.op.elementwise import (
    sqrt as sqrt,
)
from ekiden.relay.op.elementwise import (
    tanh as tanh,
)
from ekiden.relay.op.index import gather as gather
from ekiden.relay.op.index import gather_nd as gather_nd
from ekiden.relay.op.index import one_hot as one_hot
from ekiden.relay.op.index import take as take
from ekiden.relay.op.reduce import (
    all as all,
)
from ekiden.relay.op.reduce import (
    any as any,
)
from ekiden.relay.op.reduce import (
    argmax as argmax,
)
from ekiden.relay.op.reduce import (
    argmin as argmin,
)
from ekiden.relay.op.reduce import (
    max as max,
)
from ekiden.relay.op.reduce import (
    mean as mean,
)
from ekiden.relay.op.reduce import (
    min as min,
)
from ekiden.relay.op.reduce import (
    prod as prod,
)
from ekiden.relay.op.reduce import (
    sum as sum,
)
from ekiden.relay.op.reshape import expand_dims as expand_dims
from ekiden.relay.op.reshape import reshape as reshape
from ekiden.relay.op.reshape import squeeze as squeeze
from ekiden.relay.op.scan import cumsum as cumsum
from ekiden.relay.op.transform import (
    broadcast_to as broadcast_to,
)
from ekiden.relay.op.transform import (
    concatenate as concatenate,
)
from ekiden.relay.op.transform import (
    layout_transform as layout_transform,
)
from ekiden.relay.op.transform import (
    repeat as repeat,
)
from ekiden.relay.op.transform import (
    reverse as reverse,
)
from ekiden.relay.op.transform import (
    split as split,
)
from ekiden.relay.op.transform import (
    stack as stack,
)
from ekiden.relay.op.transform import (
    strided_slice as strided_slice,
)
from ekiden.relay.op.transform import (
    tile as tile,
)
from ekiden.relay.op.transform import (
    transpose as transpose,
)
