/* Device placement of values: copies between devices, imported data, and the check that all
** arguments of a primitive are on one device. */
#include "ek_tensor_walk.h"
#include "ek_vm.h"

#include <stdio.h>

#include "ek_vm_inline.h"

static int wrong_place(const char *what, ek_device expected, ek_device got) {
  ek_device_name wanted = ek_device_describe(expected), found = ek_device_describe(got);
  return ek_error("RunError", "%s: a tensor on %s expected, got one on %s", what, wanted.text,
                  found.text);
}

/* Copy a value that is no ADT: a tensor is copied, a number is returned as it is. */
static int copy_leaf(const ek_value *value, ek_device from, ek_device device, ek_value *to) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  ek_object *copy;
  if (tensor == NULL && value->type_index >= EK_INT && value->type_index <= EK_FLOAT) {
    *to = *value;
    return 0;
  }
  if (tensor == NULL) {
    return ek_error("RunError", "DeviceCopy: a tensor, a number or data of these expected, got %s",
                    ek_value_type_name(value));
  }
  if (!ek_device_same(tensor->device, from)) {
    return wrong_place("DeviceCopy", from, tensor->device);
  }
  if (ek_tensor_copied(tensor, device, &copy) != 0) return -1;
  *to = ek_value_object(copy);
  return 0;
}

/* ADT values of which fields are still to be copied. */
typedef struct copying {
  const ek_adt *from;
  ek_adt *to;                  /* reachable from the root of the copy */
  int32_t next;
} copying;

typedef struct copy_stack {
  copying *items;
  size_t n, capacity;
} copy_stack;

/* A new ADT value like 'from', whose fields are copied later; one whose fields are all under way
** already makes room, so that long lists take none. */
static int open_copy(copy_stack *stack, const ek_adt *from, ek_value *to) {
  while (stack->n != 0 && stack->items[stack->n - 1].next == stack->items[stack->n - 1].from->size) {
    stack->n--;
  }
  if (stack->n == stack->capacity) {
    size_t capacity = 2 * stack->capacity + 8;
    copying *larger = ek_alloc_or_error(capacity * sizeof *larger);
    if (larger == NULL) return -1;
    if (stack->n != 0) memcpy(larger, stack->items, stack->n * sizeof *larger);
    ek_free(stack->items);
    stack->items = larger;
    stack->capacity = capacity;
  }
  ek_adt *made = ek_adt_alloc(from->tag, from->size);
  if (made == NULL) return -1;
  *to = ek_value_object(&made->base);
  stack->items[stack->n++] = (copying){from, made, 0};
  return 0;
}

static int copy_part(copy_stack *stack, const ek_value *value, ek_device from, ek_device device,
                     ek_value *to) {
  if (value->type_index != EK_ADT) return copy_leaf(value, from, device, to);
  return open_copy(stack, (const ek_adt *)(const void *)value->v.obj, to);
}

int ek_vm_copy_value(const ek_value *value, ek_device from, ek_device device, ek_value *out) {
  copy_stack stack = {NULL, 0, 0};
  *out = ek_value_none();
  int status = copy_part(&stack, value, from, device, out);
  while (status == 0 && stack.n != 0) {
    copying *top = &stack.items[stack.n - 1];
    int32_t at = top->next++;
    if (at >= top->from->size) stack.n--;
    else status = copy_part(&stack, &top->from->fields[at], from, device, &top->to->fields[at]);
  }
  ek_free(stack.items);
  if (status != 0) ek_value_release(out);
  return status;
}

/* Data from outside --------------------------------------------------------------------------- */

typedef struct entrance {
  ek_vm *vm;
  ek_device device;            /* where tensors are to be */
  int depth;                   /* references around the value */
} entrance;

/* References inside references that are entered: each takes the C stack of a walk. */
enum { MAX_REFERENCE_DEPTH = 64 };

static bool may_stay(const void *context, const ek_object *tensor, bool is_shared) {
  const entrance *at = context;
  const ek_dltensor *dl = &((const ek_tensor *)(const void *)tensor)->dl;
  (void)is_shared;
  return ek_tensor_is_own(tensor) && ek_device_same(dl->device, at->device) &&
         ek_vm_is_readable(dl);
}

static int bring_in(const void *context, ek_value *tensor, bool is_shared) {
  const entrance *at = context;
  const ek_dltensor *dl = ek_value_tensor(tensor);
  ek_value own;
  ek_object *copy;
  int status;
  (void)is_shared;
  if (ek_device_same(dl->device, at->device)) {
    status = ek_vm_own_tensor(at->vm, tensor, dl, false, &own);
  } else {
    status = ek_tensor_copied(dl, at->device, &copy);
    if (status == 0) own = ek_value_object(copy);
  }
  if (status != 0) return -1;
  ek_value_release(tensor);
  *tensor = own;
  return 0;
}

static int enter_reference(const void *context, ek_object *reference) {
  const entrance *at = context;
  if (at->depth == MAX_REFERENCE_DEPTH) return 0;
  return ek_vm_enter_reference(at->vm, reference, at->device, at->depth + 1);
}

int ek_vm_own_nested(ek_vm *vm, ek_value *value, ek_device device, int depth) {
  entrance at = {vm, device, depth};
  ek_tensor_rule rule = {&at, may_stay, bring_in, false, enter_reference};
  return ek_tensors_apply(value, &rule);
}

int ek_vm_own_data(ek_vm *vm, ek_value *value, ek_device device) {
  return ek_vm_own_nested(vm, value, device, 0);
}

/* DeviceCopy dst src dst_device src_device */
int ek_op_DeviceCopy(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_device *devices = vm->executable->devices;
  ek_value copy;
  if (devices[pc[4]].type != EK_CPU) ek_device_note_launches(devices[pc[4]]);
  if (ek_vm_copy_value(&R[pc[2]], devices[pc[4]], devices[pc[3]], &copy) != 0) return -1;
  set(&R[pc[1]], copy);
  return 0;
}

int ek_vm_check_places(const ek_vm *vm, int32_t primitive, int32_t n) {
  const ek_executable *e = vm->executable;
  int32_t place = e->primitive_places[primitive];
  for (int32_t i = 0; place != 0 && i < n; i++) {
    const ek_dltensor *tensor = ek_value_tensor(&vm->args[i]);
    if (tensor == NULL || ek_device_same(tensor->device, e->devices[place - 1])) continue;
    if (ek_dltensor_nbytes(tensor) == 0) continue; /* only its shape is read */
    char what[128];
    ek_bytes name = e->primitives[primitive];
    snprintf(what, sizeof what, "InvokePacked: argument %d of '%.*s'", i,
             ek_shown(name, 80), name.data);
    return wrong_place(what, e->devices[place - 1], tensor->device);
  }
  return 0;
}
