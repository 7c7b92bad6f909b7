/* Compile CUDA C for one GPU architecture with NVRTC, which is loaded at first use. */
#ifndef EK_CUDA_BUILD_H_
#define EK_CUDA_BUILD_H_

#include "ekiden/runtime.h"

/* Compilation target of kernels. Compute capability 9.0 is 90; 'version' is the CUDA version that
** the driver supports (13000 for 13.0). */
typedef struct cuda_kind {
  int architecture, version;
} cuda_kind;

/* A binary, or PTX where this NVRTC knows no GPUs as new as these: in memory from malloc, a zero
** behind its 'size' bytes. From the folder of the cache where it was built before. NULL with an
** error of the host's, which names device and kernel. */
char *cuda_build(const ek_driver_host *host, ek_device device, cuda_kind kind, const char *name,
                 const void *code, size_t size, size_t *made);

#endif /* EK_CUDA_BUILD_H_ */
