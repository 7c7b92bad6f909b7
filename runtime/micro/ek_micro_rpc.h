/* A server of sessions for machines without an allocator: one model that is linked in, over any
** stream of bytes. C99 that needs nothing but memcpy and memset.
**
** docs/rpc.md has the messages. Of them it serves HELLO, FUNCTION, LOAD (of the model's name),
** ALLOC, WRITE, READ, COPY, CALL, TIME and RELEASE.
*/
#ifndef EK_MICRO_RPC_H_
#define EK_MICRO_RPC_H_

#include <stdint.h>

#include "ekiden_micro.h"

/* The machine. read and write move all of the bytes and give 0, or -1 at the end of the stream. */
typedef struct {
  int (*read)(void *data, uint32_t size);
  int (*write)(const void *data, uint32_t size);
  uint64_t (*ticks)(void);                 /* of a clock, from any beginning */
  uint64_t frequency;                      /* ticks of a second */
  /* Runs a model and gives what it gives; '*bytes' is what that took of the stack. NULL: not known. */
  int32_t (*measure_stack)(const ekiden_micro_model *model, void *const *inputs, void *const *outputs,
                           void *const *pools, uint32_t *bytes);
} ek_micro_io;

typedef struct {
  uint8_t *frame;                          /* one message; 4096 bytes at least */
  uint32_t frame_bytes;
  uint8_t *heap;                           /* tensors; a multiple of 16 */
  uint32_t heap_bytes;
  void *const *pools;                      /* those of the model, or NULL */
} ek_micro_memory;

/* Serves one session until the stream ends or the other side breaks a rule. */
void ek_micro_serve(const ekiden_micro_model *model, const ek_micro_io *io,
                    const ek_micro_memory *memory);

#endif /* EK_MICRO_RPC_H_ */
