/* What the process of a session may not do; Linux alone. */
#ifndef EK_RPC_SANDBOX_H_
#define EK_RPC_SANDBOX_H_

/* Ends this process with the one that forked it. */
void rpc_die_with_parent(int parent);

/* Holds this process, and the threads it will start, to 'folder', which it may write, and what
** programs need, which it may read; without sockets, programs, processes, signals to others; with
** limits of memory, files and descriptors. NULL, or what the kernel lacks or refuses. */
const char *rpc_sandbox(const char *folder);

#endif /* EK_RPC_SANDBOX_H_ */
