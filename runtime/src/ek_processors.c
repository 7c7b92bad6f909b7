/* The processors that a process may use: cores by the system's topology, within its affinity and the
** quota of its control groups. */
#define _GNU_SOURCE 1
#include "ek_platform.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)
/* The first processor of the core that 'cpu' belongs to, which names the core. */
static int core_of(int cpu) {
  char path[96];
  int first = cpu;
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  FILE *file = fopen(path, "re");
  if (file == NULL) return cpu;
  if (fscanf(file, "%d", &first) != 1) first = cpu;
  fclose(file);
  return first;
}

/* Adds 'cpu' unless its core is there already. */
static int add_core(int *cpus, int *cores, int count, int cpu) {
  int core = core_of(cpu);
  for (int i = 0; i < count; i++) {
    if (cores[i] == core) return count;
  }
  cpus[count] = cpu;
  cores[count] = core;
  return count + 1;
}

/* Reads a quota and its period from one file (cgroup v2: "max 100000" or "150000 100000") or from
** two (v1), and returns the cores that they allow, rounded up; 0 without a limit. */
static int read_quota(const char *path, const char *period_path) {
  long long quota = -1, period = 100000;
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  if (fscanf(file, period_path == NULL ? "%lld %lld" : "%lld", &quota, &period) < 1) quota = -1;
  fclose(file);
  file = period_path == NULL ? NULL : fopen(period_path, "re");
  if (file != NULL) {
    if (fscanf(file, "%lld", &period) != 1) quota = -1;
    fclose(file);
  }
  if (quota <= 0 || period <= 0 || quota / period >= CPU_SETSIZE) return 0;
  return (int)((quota + period - 1) / period);
}

/* The quota of the group 'path' below 'mount', in both versions' names. */
static int group_quota(const char *mount, const char *path) {
  char unified[512], quota[512], period[512];
  snprintf(unified, sizeof unified, "%s%s/cpu.max", mount, path);
  snprintf(quota, sizeof quota, "%s/cpu%s/cpu.cfs_quota_us", mount, path);
  snprintf(period, sizeof period, "%s/cpu%s/cpu.cfs_period_us", mount, path);
  int cores = read_quota(unified, NULL);
  return cores != 0 ? cores : read_quota(quota, period);
}

/* A limit of any ancestor holds too, and in a container's own namespace the path is "/". */
int ek_cpu_quota(const char *groups, const char *mount) {
  char line[384];
  int least = 0;
  FILE *file = fopen(groups, "re");
  if (file == NULL) return 0;
  while (fgets(line, sizeof line, file) != NULL) {
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) continue;
    *path++ = '\0';
    if (controllers[1] != '\0' && strstr(controllers, "cpu") == NULL) continue;
    path[strcspn(path, "\n")] = '\0';
    for (size_t length = strlen(path);; length--) {
      if (length > 0 && path[length] != '/' && path[length] != '\0') continue;
      path[length] = '\0';
      int cores = group_quota(mount, path);
      if (cores != 0 && (least == 0 || cores < least)) least = cores;
      if (length == 0) break;
    }
  }
  fclose(file);
  return least;
}

int ek_physical_cpus(int *cpus, int max) {
  int cores[CPU_SETSIZE], count = 0;
  cpu_set_t set;
  int here = sched_getcpu();
  if (max > CPU_SETSIZE) max = CPU_SETSIZE;
  if (here >= 0) count = add_core(cpus, cores, count, here);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE && count < max; cpu++) {
      if (CPU_ISSET((size_t)cpu, &set)) count = add_core(cpus, cores, count, cpu);
    }
  }
  if (count == 0) cpus[count++] = 0;
  return count;
}
#else
int ek_cpu_quota(const char *groups, const char *mount) {
  (void)groups;
  (void)mount;
  return 0;
}

#ifndef __wasm__ /* there the host says how many workers it has */
int ek_physical_cpus(int *cpus, int max) {
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  int count = online < 1 ? 1 : online > max ? max : (int)online;
  for (int i = 0; i < count; i++) cpus[i] = -1;
  return count;
}
#endif
#endif
