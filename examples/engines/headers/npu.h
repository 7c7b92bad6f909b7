/* The shape of a vendor's interface to an NPU, as most have it: a context, a program that is loaded into it, and runs
** on buffers of the host. It stands here so that npu.c compiles; take the vendor's own header in its place. */
#ifndef NPU_H_
#define NPU_H_

#include <stddef.h>
#include <stdint.h>

typedef struct npu_context npu_context;
typedef struct npu_program npu_program;

typedef struct npu_buffer {
  void *data;
  size_t size;
} npu_buffer;

int npu_context_create(npu_context **context);                /* 0, or a code */
int npu_program_load(npu_context *context, const void *code, size_t size, npu_program **program);
int npu_program_counts(const npu_program *program, uint32_t *inputs, uint32_t *outputs);
int npu_program_run(npu_program *program, const npu_buffer *inputs, npu_buffer *outputs);
void npu_program_free(npu_program *program);
const char *npu_message(int code);

#endif /* NPU_H_ */
