/* Native code of functions: what the compiler has made of their bytecode.
**
** It does all but calls and returns, for which it goes back to the loop, so that frames, recursion of
** any depth, tail calls and errors are the loop's alone, and functions with and without native code
** call each other. What the loop then runs stands in a small piece of bytecode per function:
**
**   Native 0
**   <the first call or return of the function>   Native 1
**   <the next one>                               Native 2   ...
**
** "Native k" goes on in native code behind call k, which answers with the next instruction to run:
** one of this piece, or, with an error, one byte past the instruction that failed; NULL where that is
** not known. "Watch" stands at the entry of functions whose calls are
** counted.
**
** Such code is attached while machines run. A frame that is in the bytecode stays there until it
** returns; 'entry' alone decides where the next call begins, and is stored last, with release,
** behind all that the code reads. The code is called by its address and not through
** ek_function_call: 'self' is not passed, and its signature is that of ek_native.run, whose name's
** prefix says which. */
#include "ek_vm.h"

#include <stdio.h>

enum { NATIVE_WORDS = 2 };

static int32_t *put_native(int32_t *to, int32_t point) {
  to[0] = EK_OP_NATIVE;
  to[1] = point;
  return to + NATIVE_WORDS;
}

/* The piece for a function, which is ek_alloc's; NULL with an error. Jumps cannot be among the
** copied instructions (EK_FRAMES has none), so that words need no correction. */
static int32_t *make_points(const ek_vm_function *f) {
  const int32_t *end = f->code + f->n_words;
  size_t words = NATIVE_WORDS;
  for (const int32_t *pc = f->code; pc < end; pc += ek_instruction_words(pc)) {
    if (ek_opcode_has(*pc, EK_FRAMES)) words += (size_t)ek_instruction_words(pc) + NATIVE_WORDS;
  }
  int32_t *points = ek_alloc_or_error(words * sizeof *points), *to = points;
  if (points == NULL) return NULL;
  int32_t point = 0;
  to = put_native(to, point);
  for (const int32_t *pc = f->code; pc < end; pc += ek_instruction_words(pc)) {
    if (!ek_opcode_has(*pc, EK_FRAMES)) continue;
    int32_t n = ek_instruction_words(pc);
    memcpy(to, pc, (size_t)n * sizeof *to);
    to = put_native(to + n, ++point);
  }
  return points;
}

/* Gives a function its native code, which 'code' holds. A run that is in it goes on as it was. */
static int attach(ek_executable *e, ek_vm_function *f, ek_object *code) {
  ek_native *native = ek_alloc_or_error(sizeof *native);
  int32_t *points = native == NULL ? NULL : make_points(f);
  if (points == NULL) {
    ek_free(native);
    return -1;
  }
  *native = (ek_native){.code = f->code,
                        .points = points,
                        .constants = e->constants,
                        .linked = e->linked,
                        .owner = code};
  memcpy(&native->run, &((const ek_function *)(const void *)code)->call, sizeof native->run);
  ek_retain(code);
  f->native = native;
  __atomic_store_n(&f->entry, points, __ATOMIC_RELEASE);
  return 0;
}

int ek_native_attach(ek_executable *e, ek_object *image) {
  char name[256];
  for (int32_t i = 0; i < e->n_functions; i++) {
    ek_vm_function *f = &e->functions[i];
    ek_object *code = NULL;
    int size = snprintf(name, sizeof name, EK_NATIVE_PREFIX "%.*s", ek_shown(f->name, sizeof name),
                        f->name.data);
    if (f->native != NULL || size < 0 || (size_t)size >= sizeof name) continue;
    if (ek_module_get(image, name, &code) != 0) return -1;
    if (code == NULL) continue;
    int status = attach(e, f, code);
    ek_release(code);
    if (status != 0) return -1;
  }
  return 0;
}

void ek_native_free(ek_vm_function *f) {
  if (f->native == NULL) return;
  ek_release(f->native->owner);
  ek_free((void *)(uintptr_t)f->native->points);
  ek_free(f->native);
}

/* Whether 'at' lies among 'n' words from 'start', of whatever 'at' is a part. */
static bool is_among(const int32_t *at, const int32_t *start, int32_t n) {
  return (uintptr_t)at - (uintptr_t)start < (size_t)n * sizeof *start;
}

const int32_t *ek_native_bytecode(const ek_vm_function *f, const int32_t *pc) {
  if (is_among(pc, f->code, f->n_words)) return pc;
  if (f->native == NULL) return NULL;
  const int32_t *point = f->native->points + NATIVE_WORDS, *end = f->code + f->n_words;
  for (const int32_t *at = f->code; at < end; at += ek_instruction_words(at)) {
    if (!ek_opcode_has(*at, EK_FRAMES)) continue;
    if (point == pc) return at;
    point += ek_instruction_words(at) + NATIVE_WORDS;
  }
  return NULL;
}

/* Through the body, as native code does not know how values are read; then back from where that
** would go to which jump it was. Two jumps to one place are one: which of them is told does not
** matter. */
int ek_native_choose(ek_vm *vm, ek_value *R, const int32_t *pc) {
  if (ek_vm_ops[*pc](vm, R, pc) != 0) return -1;
  int32_t chosen = 0;
  if (*pc == EK_OP_If) return pc + ek_If_true_offset(pc) == vm->pc ? 0 : 1;
  while (pc + ek_Switch_offsets(pc)[chosen] != vm->pc) chosen++;
  return chosen;
}

/* Hot functions ---------------------------------------------------------------------------------- */

int ek_native_watch(ek_executable *e, uint32_t calls, ek_object *hot) {
  static const int32_t watch[] = {EK_OP_WATCH};
  ek_mutex_lock(&e->lock);
  bool is_first = e->hot == NULL;
  if (is_first) {
    ek_retain(hot);
    e->hot = hot;
    e->hot_calls = calls;
  }
  for (int32_t i = 0; is_first && i < e->n_functions; i++) {
    ek_vm_function *f = &e->functions[i];
    if (f->native == NULL) __atomic_store_n(&f->entry, watch, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&e->lock);
  return is_first ? 0 : ek_error("RuntimeError", "watch executable: it is watched already");
}

/* Exactly one call of all threads' gets the number, and tells; later ones go by in one atomic
** addition. Until native code is there, 'entry' stays as it is. */
int ek_native_watched(ek_vm *vm) {
  ek_executable *e = vm->executable;
  ek_vm_function *f = &e->functions[vm->function - e->functions];
  ek_value name = ek_value_none(), ret = ek_value_none();
  if (__atomic_add_fetch(&f->calls, 1, __ATOMIC_RELAXED) != e->hot_calls) return 0;
  if (ek_string_new(EK_STR, f->name.data, f->name.size, &name) != 0) return -1;
  int code = ek_function_call(e->hot, &name, 1, &ret);
  ek_value_release(&name);
  ek_value_release(&ret);
  return code;
}
