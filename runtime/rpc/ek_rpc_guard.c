/* Resource checks of session processes, made by the server process. */
#include "ek_rpc_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 512, THREADS_FIELD = 17 /* of /proc/PID/stat, counted behind the name */ };

double rpc_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

uint32_t rpc_threads_of(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  text[count > 0 ? count : 0] = 0;
  char *at = strrchr(text, ')');
  for (int i = 0; at != NULL && i <= THREADS_FIELD; i++) at = strchr(at + 1, ' ');
  return at == NULL ? 0 : (uint32_t)strtoul(at, NULL, 10);
}

/* Sums what the entries of a folder have: all of them, or those of files that nothing names. */
static uint64_t sum(const char *path, int has_removed) {
  uint64_t total = 0;
  DIR *folder = opendir(path);
  if (folder == NULL) return 0;
  for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    struct stat about;
    int flags = has_removed ? 0 : AT_SYMLINK_NOFOLLOW;
    if (fstatat(dirfd(folder), entry->d_name, &about, flags) != 0 || !S_ISREG(about.st_mode)) continue;
    if (!has_removed || about.st_nlink == 0) total += (uint64_t)about.st_blocks * BLOCK_BYTES;
  }
  closedir(folder);
  return total;
}

uint64_t rpc_disk_of(pid_t pid, const char *folder) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  return sum(folder, 0) + sum(path, 1);
}

int rpc_available(int connection, int *bytes) { return ioctl(connection, FIONREAD, bytes); }

void rpc_die_with(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(1);
}
