/* Graph executor with TVM's interface (set_input, run, get_output, ...) for straight-line programs.
**
** It wraps a virtual machine and serves one caller at a time. Inputs persist between runs; outputs
** are those of the last run, with tuples flattened to their fields. Kernels can be looked up by
** name too.
**
** It has no executor of its own, and no order of nodes: the bytecode of a straight line is that
** order. It is not safe for two threads: inputs and outputs are one set for all. */
#include "ek_verify.h"

typedef struct graph {
  ek_executable *executable;   /* owned */
  ek_object *vm;               /* owned */
  ek_array *names;             /* owned strings, one per input */
  ek_array *inputs;            /* owned; NONE until set */
  ek_array *outputs;           /* owned; NULL before the first run */
  int32_t function;
} graph;

/* Arguments ------------------------------------------------------------------------------------ */

static int expect_count(const char *name, int32_t nargs, int32_t least, int32_t most) {
  if (nargs >= least && nargs <= most) return 0;
  return ek_error("TypeError", "%s: %d arguments expected, got %d", name, least, nargs);
}

/* The position of an input by name; -1 for a name that there is not. */
static int64_t find_input(const graph *self, ek_bytes name) {
  for (int64_t i = 0; i < self->names->size; i++) {
    ek_bytes known;
    if (!ek_string_borrow(&self->names->data[i], &known)) continue;
    if (known.size == name.size && memcmp(known.data, name.data, name.size) == 0) return i;
  }
  return -1;
}

/* The slot of the input that a name or number means; NULL with an error. */
static ek_value *input_at(const graph *self, const char *doing, const ek_value *key) {
  ek_bytes name;
  int64_t at = -1;
  if (ek_string_borrow(key, &name)) {
    at = find_input(self, name);
    if (at < 0) {
      ek_error("InputError", "%s: no input is named '%.*s'", doing,
               ek_shown(name, 200), name.data);
    }
  } else if (key->type_index != EK_INT) {
    ek_error("TypeError", "%s: the name or number of an input expected, got %s", doing,
             ek_value_type_name(key));
  } else if (key->v.i64 < 0 || key->v.i64 >= self->inputs->size) {
    ek_error("IndexError", "%s: an input below %lld expected, got %lld", doing,
             (long long)self->inputs->size, (long long)key->v.i64);
  } else {
    at = key->v.i64;
  }
  return at < 0 ? NULL : &self->inputs->data[at];
}

static void put(ek_value *slot, ek_object *object) {
  ek_value old = *slot;
  *slot = ek_value_object(object);
  ek_value_release(&old);
}

static bool has_shape_of(const ek_dltensor *a, const ek_dltensor *b) {
  return a->ndim == b->ndim && memcmp(&a->dtype, &b->dtype, sizeof a->dtype) == 0 &&
         (a->ndim == 0 || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

/* Returns the device on which the program takes an input. */
static ek_device place_of(const graph *self, const ek_value *slot) {
  const int32_t *places = self->executable->functions[self->function].places;
  return self->executable->devices[places == NULL ? 0 : places[slot - self->inputs->data]];
}

/* Whether an earlier call made the tensor in a slot, for this shape and for nobody else. */
static bool is_reusable(const ek_value *slot, const ek_dltensor *expected, ek_device device) {
  if (slot->type_index != EK_TENSOR || !ek_tensor_is_own(slot->v.obj)) return false;
  const ek_tensor *kept = (const ek_tensor *)(const void *)slot->v.obj;
  uint64_t counts = __atomic_load_n(&slot->v.obj->refs, __ATOMIC_ACQUIRE);
  return (uint32_t)counts == 1 && (kept->flags & EK_DLPACK_READ_ONLY) == 0 &&
         kept->owner != NULL && ek_storage_is_own(kept->owner) &&
         ek_device_same(kept->dl.device, device) && has_shape_of(&kept->dl, expected);
}

/* set_input(key, tensor): copies, to the device that the program takes it on. */
static int set_input(graph *self, const ek_value *args, ek_value *ret) {
  ek_value *slot = input_at(self, "set_input", &args[0]);
  const ek_dltensor *from = ek_value_tensor(&args[1]);
  ek_object *copy;
  (void)ret;
  if (slot == NULL) return -1;
  if (from == NULL) {
    return ek_error("TypeError", "set_input: a tensor expected, got %s",
                    ek_value_type_name(&args[1]));
  }
  ek_device device = place_of(self, slot);
  if (is_reusable(slot, from, device)) {
    return ek_tensor_copy(from, &((ek_tensor *)(void *)slot->v.obj)->dl);
  }
  if (ek_tensor_copied(from, device, &copy) != 0) return -1;
  put(slot, copy);
  return 0;
}

/* set_input_zero_copy(key, tensor): refers to the tensor, which is read at each run. */
static int share_input(graph *self, const ek_value *args, ek_value *ret) {
  ek_value *slot = input_at(self, "set_input_zero_copy", &args[0]);
  ek_value value = args[1];
  (void)ret;
  if (slot == NULL) return -1;
  if (value.type_index != EK_TENSOR) {
    return ek_error("TypeError", "set_input_zero_copy: a tensor object expected, got %s",
                    ek_value_type_name(&value));
  }
  ek_retain(value.v.obj);
  put(slot, value.v.obj);
  return 0;
}

static int get_input(graph *self, const ek_value *args, ek_value *ret) {
  const ek_value *slot = input_at(self, "get_input", &args[0]);
  if (slot == NULL) return -1;
  *ret = *slot;
  ek_value_retain(ret);
  return 0;
}

static int get_input_index(graph *self, const ek_value *args, ek_value *ret) {
  ek_bytes name;
  if (!ek_string_borrow(&args[0], &name)) {
    return ek_error("TypeError", "get_input_index: a name expected, got %s",
                    ek_value_type_name(&args[0]));
  }
  *ret = ek_value_int(find_input(self, name));
  return 0;
}

static int get_num_inputs(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  *ret = ek_value_int(self->inputs->size);
  return 0;
}

static int get_input_names(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  *ret = ek_value_object(&self->names->base);
  ek_value_retain(ret);
  return 0;
}

static int get_metadata(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  return ek_executable_item(&self->executable->base, EK_PART_METADATA, 0, ret);
}

/* Return the virtual machine and the executable, for callers that place results (ek.vm.places). */
static int get_machine(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  *ret = ek_value_object(self->vm);
  ek_value_retain(ret);
  return 0;
}

static int get_executable(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  *ret = ek_value_object(&self->executable->base);
  ek_value_retain(ret);
  return 0;
}

/* Running -------------------------------------------------------------------------------------- */

enum { MAX_NESTING = 64 };

/* A value as the tuple that it is, or NULL. */
static const ek_adt *as_tuple(const ek_value *value, int depth) {
  if (value->type_index != EK_ADT || depth == MAX_NESTING) return NULL;
  const ek_adt *adt = (const ek_adt *)(const void *)value->v.obj;
  return adt->tag == 0 ? adt : NULL;
}

/* Returns the number of leaves of a result, tuples flattened. */
static int64_t count_leaves(const ek_value *value, int depth) {
  const ek_adt *tuple = as_tuple(value, depth);
  if (tuple == NULL) return 1;
  int64_t count = 0;
  for (int32_t i = 0; i < tuple->size; i++) count += count_leaves(&tuple->fields[i], depth + 1);
  return count;
}

static ek_value *add_leaves(const ek_value *value, int depth, ek_value *to) {
  const ek_adt *tuple = as_tuple(value, depth);
  if (tuple == NULL) {
    *to = *value;
    ek_value_retain(to);
    return to + 1;
  }
  for (int32_t i = 0; i < tuple->size; i++) to = add_leaves(&tuple->fields[i], depth + 1, to);
  return to;
}

static int run(graph *self, const ek_value *args, ek_value *ret) {
  const ek_array *inputs = self->inputs;
  ek_value result = ek_value_none();
  (void)args;
  (void)ret;
  for (int64_t i = 0; i < inputs->size; i++) {
    ek_bytes name = {"", 0};
    if (inputs->data[i].type_index != EK_NONE) continue;
    (void)ek_string_borrow(&self->names->data[i], &name);
    return ek_error("InputError", "run: input '%.*s' is not set",
                    ek_shown(name, 200), name.data);
  }
  if (ek_vm_invoke(self->vm, self->function, inputs->data, (int32_t)inputs->size, &result) != 0) {
    return -1;
  }
  ek_array *outputs = ek_array_alloc(count_leaves(&result, 0));
  if (outputs != NULL) {
    add_leaves(&result, 0, outputs->data);
    if (self->outputs != NULL) ek_release(&self->outputs->base);
    self->outputs = outputs;
  }
  ek_value_release(&result);
  return outputs == NULL ? -1 : 0;
}

static int get_num_outputs(graph *self, const ek_value *args, ek_value *ret) {
  (void)args;
  if (self->outputs == NULL) return ek_error("RunError", "get_num_outputs: nothing has run yet");
  *ret = ek_value_int(self->outputs->size);
  return 0;
}

/* get_output(i), or get_output(i, tensor), which is written. */
static int get_output(graph *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  if (self->outputs == NULL) return ek_error("RunError", "get_output: nothing has run yet");
  int64_t n = self->outputs->size;
  if (args[0].type_index != EK_INT || args[0].v.i64 < 0 || args[0].v.i64 >= n) {
    return ek_error("IndexError", "get_output: the number of one of %lld outputs expected",
                    (long long)n);
  }
  const ek_value *value = &self->outputs->data[args[0].v.i64];
  if (nargs == 2) {
    const ek_dltensor *from = ek_value_tensor(value), *to = ek_value_tensor(&args[1]);
    if (from == NULL || to == NULL) {
      return ek_error("TypeError", "get_output: a tensor to write expected, got %s",
                      ek_value_type_name(&args[1]));
    }
    const ek_object *target = args[1].type_index == EK_TENSOR ? args[1].v.obj : NULL;
    if (target != NULL && ek_tensor_is_own(target) &&
        ((const ek_tensor *)(const void *)target)->flags & EK_DLPACK_READ_ONLY) {
      return ek_error("ValueError", "get_output: the tensor to write is read-only");
    }
    return ek_tensor_copy(from, to);
  }
  *ret = *value;
  ek_value_retain(ret);
  return 0;
}

/* The kind ------------------------------------------------------------------------------------- */

typedef int (*graph_call)(graph *self, const ek_value *args, ek_value *ret);

static const struct {
  const char *name;
  graph_call call;             /* NULL: get_output */
  int32_t least, most;         /* arguments */
} functions[] = {
    {"get_executable", get_executable, 0, 0},
    {"get_input", get_input, 1, 1},
    {"get_input_index", get_input_index, 1, 1},
    {"get_input_names", get_input_names, 0, 0},
    {"get_machine", get_machine, 0, 0},
    {"get_metadata", get_metadata, 0, 0},
    {"get_num_inputs", get_num_inputs, 0, 0},
    {"get_num_outputs", get_num_outputs, 0, 0},
    {"get_output", NULL, 1, 2},
    {"run", run, 0, 0},
    {"set_input", set_input, 2, 2},
    {"set_input_zero_copy", share_input, 2, 2},
};

enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef struct graph_function {
  ek_object *module;           /* owned */
  graph *of;
  int32_t index;
} graph_function;

static int call(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const graph_function *f = context;
  const char *name = functions[f->index].name;
  if (expect_count(name, nargs, functions[f->index].least, functions[f->index].most) != 0) {
    return -1;
  }
  graph_call plain = functions[f->index].call;
  return plain != NULL ? plain(f->of, args, ret) : get_output(f->of, args, nargs, ret);
}

static void delete_function(void *context) {
  graph_function *function = context;
  ek_release(function->module);
  ek_free(function);
}

static int graph_get(void *context, ek_object *module, const char *name, ek_object **out) {
  int32_t index = 0;
  while (index < N_FUNCTIONS && strcmp(functions[index].name, name) != 0) index++;
  if (index == N_FUNCTIONS) {
    return ek_executable_kernel(((graph *)context)->executable, name, out);
  }
  graph_function *function = ek_alloc_or_error(sizeof *function);
  if (function == NULL) return -1;
  *function = (graph_function){module, context, index};
  if (ek_function_new(function, call, delete_function, out) != 0) {
    ek_free(function);
    return -1;
  }
  ek_retain(module);
  return 0;
}

static int graph_names(void *context, ek_object **out) {
  const char *names[N_FUNCTIONS];
  (void)context;
  for (int32_t i = 0; i < N_FUNCTIONS; i++) names[i] = functions[i].name;
  return ek_array_of_names(names, N_FUNCTIONS, out);
}

static void graph_destroy(void *context) {
  graph *self = context;
  if (self->outputs != NULL) ek_release(&self->outputs->base);
  if (self->inputs != NULL) ek_release(&self->inputs->base);
  if (self->names != NULL) ek_release(&self->names->base);
  ek_object_release(self->vm);
  ek_object_release(&self->executable->base);
  ek_free(self);
}

static const ek_module_kind graph_kind = {"GraphExecutor", graph_get, graph_names, NULL,
                                          graph_destroy, NULL};

/* Whether instructions run one after the other. */
static int expect_straight(const ek_executable *e, int32_t function) {
  const ek_vm_function *f = &e->functions[function];
  for (const int32_t *pc = f->code; pc < f->code + f->n_words; pc += ek_instruction_words(pc)) {
    const char *name = ek_opcodes[*pc].name;
    bool jumps =
        *pc == EK_OP_If || *pc == EK_OP_Switch || *pc == EK_OP_Goto || *pc == EK_OP_Fatal;
    if (!jumps && strncmp(name, "Invoke", 6) != 0 && strncmp(name, "AllocClosure", 12) != 0) {
      continue;
    }
    if (strncmp(name, "InvokePacked", 12) == 0) continue;
    return ek_error("CompileError",
                    "graph executor: '%.*s' is not a straight line: it has the instruction %s; "
                    "the virtual machine runs it",
                    (int)f->name.size, f->name.data, name);
  }
  return 0;
}

static int fill(graph *self, ek_object *library) {
  ek_value names = ek_value_none();
  ek_executable *e = self->executable;
  if (expect_straight(e, self->function) != 0) return -1;
  if (ek_executable_link(e, library) != 0) return -1;
  if (ek_vm_new(&e->base, &self->vm) != 0) return -1;
  if (ek_executable_item(&e->base, EK_PART_PARAMS, self->function, &names) != 0) return -1;
  self->names = (ek_array *)(void *)names.v.obj;
  self->inputs = ek_array_alloc(self->names->size);
  return self->inputs == NULL ? -1 : 0;
}

int ek_graph_new(ek_object *executable, ek_object *library, ek_object **out) {
  if (!ek_is(executable, EK_EXECUTABLE)) {
    return ek_error("TypeError", "make graph executor: an executable expected");
  }
  graph *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  *self = (graph){.executable = (ek_executable *)(void *)executable};
  ek_retain(executable);
  self->function = ek_executable_find(self->executable, "main");
  int code = self->function >= 0
                 ? fill(self, library)
                 : ek_error("InputError", "make graph executor: there is no function 'main'");
  if (code == 0 && ek_module_new(&graph_kind, self, out) == 0) return 0;
  graph_destroy(self);
  return -1;
}
