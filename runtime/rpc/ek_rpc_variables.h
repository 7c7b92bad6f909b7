/* Of the environment of its server a session has these variables.
**
** Generated from src/ekiden/rpc/syscall_filter.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_VARIABLES_H_
#define EK_RPC_VARIABLES_H_

/* The first are of folders of libraries, which a session may read. */
enum { RPC_FOLDER_VARIABLES = 3 };

static const char *const rpc_variables[] = {
    "LD_LIBRARY_PATH",
    "EKIDEN_DRIVERS",
    "EKIDEN_ENGINES",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "EKIDEN_NUM_THREADS",
    "EKIDEN_MEMORY_LIMIT",
    "EKIDEN_NVRTC",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OCL_ICD_VENDORS",
    "OCL_ICD_FILENAMES",
    "POCL_DEVICES",
    "POCL_MAX_PTHREAD_COUNT",
    "VK_ICD_FILENAMES",
    "VK_DRIVER_FILES",
};

#endif /* EK_RPC_VARIABLES_H_ */
