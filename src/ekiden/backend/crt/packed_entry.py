"""Entry functions of a MicroModule in the open C ABI: loaders call `tvmgen_NAME_run` with tensors,
inputs first.

The C has its own words for the ABI's structures, as it is compiled where no header of it is. A call
with other arguments gives -1 and changes nothing; nobody is there to take a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.backend.crt.interfaces import Interface
from ekiden.backend.crt.micro_module import MicroTensor
from ekiden.runtime.binding.dtypes import dtype_code
from ekiden.runtime.binding.layout import TypeIndex

_ABI_TEMPLATE = """\
#include <stddef.h>
#include <stdint.h>

#include "ekiden_{model}.h"

typedef struct {{
  int32_t type_index;
  uint32_t length;
  union {{
    int64_t number;
    void *address;
  }} v;
}} value;

typedef struct {{
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
}} dltensor;

typedef struct {{
  uint8_t code, bits;
  int32_t ndim;
  const int64_t *shape;
}} wanted_tensor;

"""
_CALL_TEMPLATE = """\

static uint8_t nothing;

/* The address of an argument's elements; NULL where it is not the tensor that is wanted. */
static void *elements(const value *given, const wanted_tensor *wanted) {{
  const dltensor *t = NULL;
  if (given->type_index == {pointer}) t = (const dltensor *)given->v.address;
  if (given->type_index == {tensor})
    t = (const dltensor *)(void *)((uint8_t *)given->v.address + 24);
  if (t == NULL || t->device_type != 1 || t->ndim != wanted->ndim) return NULL;
  if (t->code != wanted->code || t->bits != wanted->bits || t->lanes != 1) return NULL;
  int64_t size = 1, step = 1;
  for (int32_t axis = 0; axis < t->ndim; axis++) {{
    if (t->shape[axis] != wanted->shape[axis]) return NULL;
    size *= t->shape[axis];
  }}
  if (size == 0) return (void *)&nothing; /* strides and address of an empty tensor may be any */
  for (int32_t axis = t->ndim - 1; axis >= 0; axis--) {{
    if (t->strides != NULL && t->shape[axis] != 1 && t->strides[axis] != step) return NULL;
    step *= t->shape[axis];
  }}
  return (uint8_t *)t->data + t->byte_offset;
}}

int __tvm_ffi_{prefix}_run(void *self, const void *args, int32_t nargs, void *ret);
int __tvm_ffi_{prefix}_run(void *self, const void *args, int32_t nargs, void *ret) {{
  void *given[{room}];
  (void)self;
  (void)ret;
  if (nargs != {count}) return -1;
  for (int32_t n = 0; n < {count}; n++) {{
    given[n] = elements((const value *)args + n, &wanted[n]);
    if (given[n] == NULL) return -1;
  }}
  return ekiden_{name}.run(given, given + {inputs}, NULL);
}}
"""


def emit_packed(interface: Interface, model: str) -> str:
    """Emit the C file of an entry function of a model, whose header `model` names."""
    tensors = (*interface.inputs, *interface.outputs)
    return (
        _ABI_TEMPLATE.format(model=model)
        + _emit_tensor_table(tensors)
        + _CALL_TEMPLATE.format(
            name=interface.name,
            prefix=interface.prefix,
            pointer=TypeIndex.DLTENSOR_PTR,
            tensor=TypeIndex.TENSOR,
            count=len(tensors),
            room=max(len(tensors), 1),
            inputs=len(interface.inputs),
        )
    )


def _emit_tensor_table(tensors: Sequence[MicroTensor]) -> str:
    shapes, rows = [], []
    for n, tensor in enumerate(tensors):
        code, bits, _ = dtype_code(tensor.dtype)
        sizes = ", ".join(map(str, tensor.shape)) or "0"
        shapes.append(f"static const int64_t shape{n}[] = {{{sizes}}};\n")
        rows.append(f"  {{{code}, {bits}, {len(tensor.shape)}, shape{n}}},\n")
    table = "".join(rows) or "  {0, 0, 0, NULL},\n"
    return "".join(shapes) + f"static const wanted_tensor wanted[] = {{\n{table}}};\n"


__all__ = ["emit_packed"]
