/* Sandbox of a session's process; Linux only.
**
** 'rpc_start' starts the process with isolated files, processes and users (namespaces, landlock, no
** capabilities). 'rpc_close', called by the process once it has opened all that it needs, applies
** the resource limits and the seccomp filter. */
#ifndef EK_RPC_SANDBOX_H_
#define EK_RPC_SANDBOX_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RPC_CONTROL = 3 }; /* the first descriptor of the program that 'rpc_start' starts */

/* A program to start. Texts are borrowed for the call; lists of them end with NULL. */
typedef struct rpc_program {
  const char *const *words;         /* the program, by an absolute path, and its arguments */
  const char *const *environment;
  const char *folder;               /* which it may write; the current one when it begins */
  const char *const *readable;      /* files and folders that it may read beside the system's */
  const int *descriptors;           /* which become RPC_CONTROL, and so on; all others are closed */
  int descriptor_count;
  int output;                       /* what its descriptors 1 and 2 write to; -1: nowhere */
  int has_sandbox;                  /* 0: a program of its own, with no walls around it */
  int max_landlock;                 /* the newest ABI to use; -1: the kernel's */
  int max_namespaces;               /* 0: none; -1: what the kernel gives */
} rpc_program;

/* Walls that a program was started behind, as bits. */
enum { RPC_USER_NAMESPACE = 1, RPC_NAMESPACES = 2, RPC_LANDLOCK = 4 };

/* Limits of a session: bytes beyond what the process has, of a file, numbers. */
typedef struct rpc_limits {
  uint64_t memory, file;
  uint32_t open_files, threads;
} rpc_limits;

/* Return the name of the kernel feature that a sandbox needs and this machine lacks, or NULL. */
const char *rpc_lack(void);

/* Starts a program: its process, and in '*walls' what it is behind; or -1 with a sentence in
** 'wrong'. It ends with the thread that calls this. */
pid_t rpc_start(const rpc_program *program, unsigned *walls, char *wrong, size_t size);

/* Closes the last walls around this process, all of its threads: NULL, or what the kernel refuses.
** 'has_devices' lets drivers speak to devices that are open or that landlock lets it open. */
const char *rpc_close(const rpc_limits *limits, unsigned walls, int has_devices);

/* Inside of ek_rpc_start.c's child alone: holds the calling thread to files. 0 or -1, errno set. */
int rpc_confine_files(const rpc_program *program, const char *const *devices, int has_own_proc);

/* The ABI of landlock that is used: 0 where there is none. */
int rpc_landlock(int max_landlock);

/* Paths that every program reads, and device nodes that it may open. */
extern const char *const rpc_system_paths[], *const rpc_device_paths[];

#endif /* EK_RPC_SANDBOX_H_ */
