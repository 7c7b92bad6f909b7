/* Resource use of session processes (threads, disk, time), as the server measures it. */
#ifndef EK_RPC_GUARD_H_
#define EK_RPC_GUARD_H_

#include <stdint.h>
#include <sys/types.h>

/* Seconds of a clock that only goes on. */
double rpc_seconds(void);

/* Return the number of threads of a process; 0 if it has ended. */
uint32_t rpc_threads_of(pid_t pid);

/* Bytes that a session has on the disk: in its folder, and of files that it has removed. */
uint64_t rpc_disk_of(pid_t pid, const char *folder);

/* Bytes that can be read from a socket. 0 or -1. */
int rpc_available(int connection, int *bytes);

/* Ends this process with the one that forked it. */
void rpc_die_with(int parent);

#endif /* EK_RPC_GUARD_H_ */
