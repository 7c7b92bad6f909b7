/* Looks into a function of Relay that Python made, gives it another body, compiles and runs it.
**
**   cc -std=c11 rebuild.c $(python3-config --embed --cflags --ldflags) \
**      -I$(python -c 'import ekiden.runtime as r; print(r.include_dir())') LIBRARY -o rebuild
**   ./rebuild $(which python)
**
** where LIBRARY is what ekiden.runtime.library_path() says. Python runs the compiler, in this
** process; all that follows after it has made a function is C. Prints the function's type with its
** parents, its fields, and what the function with the other body gives.
*/
#include <Python.h>
#include <ekiden/runtime.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char prepare[] =
    "import ekiden\n"
    "from ekiden import relay\n"
    "import ekiden.relay.backend.build\n"
    "x = relay.var('x', shape=(2, 3))\n"
    "function = relay.Function([x], relay.nn.relu(x))\n"
    "ekiden.register_func('program.function', lambda: function)\n";

/* Starts the Python of an environment, has it run 'prepare', and lets go of its lock. 0 or -1. */
static int start_python(const char *program) {
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, program);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) return ek_error("RuntimeError", "start Python: it does not");
  if (PyRun_SimpleString(prepare) != 0) return ek_error("RuntimeError", "run Python: it failed");
  PyEval_SaveThread();
  return 0;
}

static int call(const char *name, const ek_value *args, int32_t n, ek_value *out) {
  ek_object *function = ek_registry_get(name);
  if (function == NULL) return ek_error("KeyError", "there is no function '%s'", name);
  int code = ek_function_call(function, args, n, out);
  ek_object_release(function);
  return code;
}

static ek_value text(const char *data) {
  ek_value value = {EK_RAW_STR, 0, {0}};
  value.v.ptr = (void *)(uintptr_t)data;
  return value;
}

/* The value of a field by its name; owned. */
static int get_field(const ek_object *object, const char *name, ek_value *out) {
  const ek_type_info *info = ek_type_get(object->type_index);
  for (int32_t i = 0; i < info->n_fields; i++) {
    if (strcmp(info->fields[i].name, name) == 0) {
      return ek_field_get(object, &info->fields[i], out);
    }
  }
  return ek_error("AttributeError", "'%s' has no field '%s'", info->key, name);
}

/* An object of a type, from the values of its first fields; owned. */
static int make(const char *key, const ek_value *fields, int32_t n, ek_value *out) {
  ek_object *object = NULL;
  if (ek_object_new(ek_type_index(key), fields, n, &object) != 0) return -1;
  *out = ek_value_object(object);
  return 0;
}

static int print_type(const ek_object *object) {
  for (int32_t type = object->type_index; type >= EK_OBJECT;) {
    const ek_type_info *info = ek_type_get(type);
    printf("%s%s", info->key, info->parent >= EK_OBJECT ? " < " : "\n");
    type = info->parent;
  }
  const ek_type_info *info = ek_type_get(object->type_index);
  for (int32_t i = 0; i < info->n_fields; i++) {
    ek_value value = ek_value_none();
    if (ek_field_get(object, &info->fields[i], &value) != 0) return -1;
    printf("  %s: %s\n", info->fields[i].name, ek_type_key(value.type_index));
    ek_value_release(&value);
  }
  return 0;
}

/* fn (%x) { nn.relu(%x) }  ->  fn (%x) { exp(%x) }; owned. */
static int with_exp(const ek_object *function, ek_value *out) {
  ek_value params = ek_value_none(), call_fields[2] = {ek_value_none(), ek_value_none()};
  ek_value fields[2] = {ek_value_none(), ek_value_none()}, name = text("exp");
  ek_object *args = NULL;
  int code = get_field(function, "params", &params);
  if (code == 0) code = call("ir.GetOp", &name, 1, &call_fields[0]);
  if (code == 0) {
    code = ek_container_new(EK_ARRAY, 0, ((const ek_adt *)(const void *)params.v.obj)->fields, 1,
                            &args);
  }
  if (code == 0) {
    call_fields[1] = ek_value_object(args);
    code = make("relay.Call", call_fields, 2, &fields[1]);
  }
  fields[0] = params;
  if (code == 0) code = make("relay.Function", fields, 2, out);
  for (int i = 0; i < 2; i++) {
    ek_value_release(&fields[i]);
    ek_value_release(&call_fields[i]);
  }
  return code;
}

static int compile_and_run(ek_value function) {
  ek_value args[2] = {function, text("llvm")}, module = ek_value_none(), result = module, input;
  ek_object *main_function = NULL, *tensor = NULL;
  int64_t shape[2] = {2, 3};
  if (call("ekiden.compile", args, 2, &module) != 0) return -1;
  int code = ek_module_get(module.v.obj, "main", &main_function);
  if (code == 0) {
    code = ek_tensor_new(shape, 2, (ek_dtype){EK_DTYPE_FLOAT, 32, 1}, (ek_device){EK_CPU, 0},
                         &tensor);
  }
  if (code == 0) {
    float *data = ek_dltensor_data(&((const ek_tensor *)(const void *)tensor)->dl);
    for (int i = 0; i < 6; i++) data[i] = (float)(i - 3);
    input = ek_value_object(tensor);
    code = ek_function_call(main_function, &input, 1, &result);
  }
  if (code == 0) {
    const float *data = ek_dltensor_data(ek_value_tensor(&result));
    for (int i = 0; i < 6; i++) printf("%.4f%s", (double)data[i], i == 5 ? "\n" : " ");
  }
  ek_object_release(tensor);
  ek_object_release(main_function);
  ek_value_release(&result);
  ek_value_release(&module);
  return code;
}

/* Through JSON and back: the same function, in other objects. */
static int print_json(ek_value function) {
  ek_value saved = ek_value_none(), args[2] = {function, ek_value_none()}, same = ek_value_none();
  ek_bytes json = {"", 0};
  if (call("node.SaveJSON", &function, 1, &saved) != 0) return -1;
  ek_string_borrow(&saved, &json);
  int code = call("node.LoadJSON", &saved, 1, &args[1]);
  if (code == 0) code = call("node.StructuralEqual", args, 2, &same);
  if (code == 0) {
    printf("json: %s, %s\n", json.size > 100 ? "long" : "short", same.v.i64 ? "equal" : "other");
  }
  ek_value_release(&args[1]);
  ek_value_release(&saved);
  return code;
}

static int work(void) {
  ek_value function = ek_value_none(), again = function, rebuilt = function;
  int code = call("program.function", NULL, 0, &function);
  if (code == 0) code = call("program.function", NULL, 0, &again);
  if (code == 0) printf("%s\n", again.v.obj == function.v.obj ? "one object" : "a copy");
  if (code == 0) code = print_type(function.v.obj);
  if (code == 0) code = print_json(function);
  if (code == 0) code = with_exp(function.v.obj, &rebuilt);
  if (code == 0) code = compile_and_run(rebuilt);
  ek_value_release(&rebuilt);
  ek_value_release(&again);
  ek_value_release(&function);
  return code;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: rebuild PYTHON\n");
    return 2;
  }
  if (start_python(argv[1]) == 0 && work() == 0) return 0;
  ek_object *error = ek_error_take();
  const ek_error_object *e = (const ek_error_object *)(const void *)error;
  fprintf(stderr, "%.*s: %.*s\n", (int)e->kind.size, e->kind.data, (int)e->message.size,
          e->message.data);
  ek_object_release(error);
  return 1;
}
