/* Start the process of a session in its sandbox.
**
** One clone creates the child, in new namespaces where the kernel allows them; it executes the
** program once its restrictions are applied. As the caller may have threads, the child makes system
** calls only: all memory that it needs is allocated before the clone.
**
** Its root is an empty tmpfs into which the visible folders and files are bind-mounted at their
** original paths, read-only except for the session's folder. */
#include "ek_rpc_sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/securebits.h>

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

enum { MOUNT_SETATTR = 442, CLOSE_RANGE = 436, MAX_LINKS = 40, MAX_DESCRIPTORS = 8 };
enum { READ_ONLY = 1, NO_SETUID = 2 }; /* attributes of a mount, as mount_setattr has them */
#define OLD_ROOT "/.old"

/* The plan of a view ---------------------------------------------------------------------------- */

typedef enum place_kind { LINK, FOLDER, NODE } place_kind;

/* A place of the view: 'path', and where it is before, below OLD_ROOT; of a link, its text. */
typedef struct rpc_place {
  place_kind kind;
  int is_device;
  char *path, *source;
} rpc_place;

typedef struct rpc_view {
  rpc_place *places;
  size_t count, room;
  char *old_root; /* the place of OLD_ROOT below the session's folder */
  char *folder_source;
} rpc_view;

static void view_free(rpc_view *view) {
  for (size_t i = 0; i < view->count; i++) free(view->places[i].path), free(view->places[i].source);
  free(view->places), free(view->old_root), free(view->folder_source);
}

static char *joined(const char *one, const char *other) {
  size_t size = strlen(one) + strlen(other) + 1;
  char *text = malloc(size);
  if (text != NULL) snprintf(text, size, "%s%s", one, other);
  return text;
}

/* Whether a place is there already, itself or by a folder above it. */
static int is_covered(const rpc_view *view, place_kind kind, const char *path) {
  for (size_t i = 0; i < view->count; i++) {
    const rpc_place *place = &view->places[i];
    size_t size = strlen(place->path);
    if (strncmp(place->path, path, size) != 0) continue;
    if (path[size] == 0 || (place->kind == FOLDER && path[size] == '/' && kind != NODE)) return 1;
  }
  return 0;
}

static int add(rpc_view *view, place_kind kind, int is_device, const char *path, const char *text) {
  if (is_covered(view, kind, path)) return 0;
  if (view->count == view->room) {
    view->room = 2 * view->room + 16;
    rpc_place *places = realloc(view->places, view->room * sizeof *places);
    if (places == NULL) return -1;
    view->places = places;
  }
  char *own = strdup(path), *source = kind == LINK ? strdup(text) : joined(OLD_ROOT, path);
  view->places[view->count++] = (rpc_place){kind, is_device, own, source};
  return own == NULL || source == NULL ? -1 : 0;
}

/* Adds a path: the links on its way, and what it leads to. One that leads nowhere is none. */
static int add_path(rpc_view *view, const char *path, int is_device) {
  char rest[PATH_MAX], done[PATH_MAX] = "", next[PATH_MAX], text[PATH_MAX];
  struct stat about = {0};
  if (snprintf(rest, sizeof rest, "%s", path) >= (int)sizeof rest || path[0] != '/') return 0;
  for (int links = 0; rest[0] != 0;) {
    char *word = rest + strspn(rest, "/");
    size_t size = strcspn(word, "/");
    if (size == 0) break;
    if (snprintf(next, sizeof next, "%s/%.*s", done, (int)size, word) >= (int)sizeof next) return 0;
    memmove(rest, word + size, strlen(word + size) + 1);
    if (size == 1 && strncmp(strrchr(next, '/') + 1, ".", 2) == 0) continue;
    if (strcmp(strrchr(next, '/') + 1, "..") == 0) {
      char *last = strrchr(done, '/');
      if (last != NULL) *last = 0;
      continue;
    }
    if (lstat(next, &about) != 0) return 0;
    if (!S_ISLNK(about.st_mode)) {
      memcpy(done, next, strlen(next) + 1);
      continue;
    }
    ssize_t count = readlink(next, text, sizeof text - 1);
    if (count < 0 || ++links > MAX_LINKS) return 0;
    text[count] = 0;
    if (add(view, LINK, 0, next, text) != 0) return -1;
    if (strlen(text) + strlen(rest) + 2 > sizeof next) return 0;
    memcpy(next, text, (size_t)count), memcpy(next + count, rest, strlen(rest) + 1);
    memcpy(rest, next, strlen(next) + 1);
    if (text[0] == '/') done[0] = 0;
  }
  if (done[0] == 0 || lstat(done, &about) != 0) return 0;
  return add(view, S_ISDIR(about.st_mode) ? FOLDER : NODE, is_device, done, NULL);
}

static int add_paths(rpc_view *view, const char *const *paths, int is_device) {
  for (; paths != NULL && *paths != NULL; paths++) {
    if (add_path(view, *paths, is_device) != 0) return -1;
  }
  return 0;
}

static int plan(rpc_view *view, const rpc_program *program) {
  view->old_root = joined(program->folder, OLD_ROOT);
  view->folder_source = joined(OLD_ROOT, program->folder);
  if (view->old_root == NULL || view->folder_source == NULL) return -1;
  if (add_paths(view, rpc_system_paths, 0) != 0 || add_paths(view, program->readable, 0) != 0) return -1;
  return add_paths(view, rpc_device_paths, 1);
}

/* The child: calls of the kernel alone ---------------------------------------------------------- */

typedef struct mount_attributes {
  uint64_t set, clear, propagation, namespace_of_users;
} mount_attributes;

/* The failed step and errno, for the parent, which formats the message. */
typedef struct rpc_failure {
  const char *doing; /* the same text in both, as one is the other's copy */
  int error;
} rpc_failure;

static int set_attributes(const char *path, uint64_t attributes, unsigned flags) {
  mount_attributes wanted = {attributes, 0, 0, 0};
  return (int)syscall(MOUNT_SETATTR, AT_FDCWD, path, flags, &wanted, sizeof wanted);
}

/* Makes the folders above a path, which is this process's own to change. */
static void make_parent_folders(char *path) {
  for (char *at = path + 1; *at != 0; at++) {
    if (*at != '/') continue;
    *at = 0;
    mkdir(path, 0755);
    *at = '/';
  }
}

static int bind_place(rpc_place *place) {
  make_parent_folders(place->path);
  if (place->kind == LINK) {
    return symlink(place->source, place->path) == 0 || errno == EEXIST || errno == EROFS ? 0 : -1;
  }
  if (place->kind == FOLDER) {
    mkdir(place->path, 0755);
  } else {
    int file = open(place->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0) close(file);
  }
  if (mount(place->source, place->path, NULL, MS_BIND | MS_REC, NULL) != 0) {
    return errno == ENOENT || errno == EACCES ? 0 : -1; /* gone, or a folder closed to this user */
  }
  if (place->is_device) return 0;
  return set_attributes(place->path, READ_ONLY | NO_SETUID, 0x8000 /* AT_RECURSIVE */);
}

static const char *enter_root(const rpc_program *program, rpc_view *view) {
  if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) return "mounts of its own";
  if (mount("tmpfs", program->folder, "tmpfs", MS_NOSUID, "size=1m,mode=755") != 0) {
    return "a file system in memory";
  }
  if (mkdir(view->old_root, 0700) != 0 || chdir(program->folder) != 0) return "a view of files";
  if (syscall(SYS_pivot_root, ".", view->old_root) != 0 || chdir("/") != 0) return "a root of its own";
  for (size_t i = 0; i < view->count; i++) {
    if (bind_place(&view->places[i]) != 0) return "files to read";
  }
  mkdir("/proc", 0555);
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL) != 0) {
    return "a /proc of its own";
  }
  make_parent_folders((char *)(uintptr_t)program->folder);
  mkdir(program->folder, 0700);
  if (mount(view->folder_source, program->folder, NULL, MS_BIND, NULL) != 0) return "its folder";
  if (umount2(OLD_ROOT, MNT_DETACH) != 0 || rmdir(OLD_ROOT) != 0) return "the old root";
  return set_attributes("/", READ_ONLY | NO_SETUID, 0) == 0 ? NULL : "a root that is read alone";
}

static int write_file(const char *path, const char *text, size_t size) {
  int file = open(path, O_WRONLY | O_CLOEXEC);
  ssize_t count = file < 0 ? -1 : write(file, text, size);
  if (file >= 0) close(file);
  return count == (ssize_t)size ? 0 : -1;
}

/* The texts of a namespace of users, made before the clone. */
typedef struct user_maps {
  char users[32], groups[32];
} user_maps;

static const char *map_user(const user_maps *maps) {
  if (write_file("/proc/self/setgroups", "deny", 4) != 0 && errno != ENOENT) return "its groups";
  if (write_file("/proc/self/uid_map", maps->users, strlen(maps->users)) != 0) return "its user";
  return write_file("/proc/self/gid_map", maps->groups, strlen(maps->groups)) == 0 ? NULL : "its group";
}

/* No capability is left, and none comes back: not by a program of root's, not by one with a bit. */
static const char *drop_capabilities(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
  for (unsigned long i = 0; prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++) continue;
  prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED
                               | SECBIT_KEEP_CAPS_LOCKED, 0, 0, 0);
  if (syscall(SYS_capset, &head, none) != 0) return "dropping capabilities";
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? NULL : "no_new_privs";
}

/* Descriptors 0 to 2 are pipes or nothing, those of the program follow, no other is left open; the
** last one open is 'report', which the program's start closes. */
static const char *set_descriptors(const rpc_program *program, int *report) {
  int taken[MAX_DESCRIPTORS], base = RPC_CONTROL + program->descriptor_count;
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0 || program->descriptor_count > MAX_DESCRIPTORS) return "descriptors";
  int output = program->output < 0 ? nothing : program->output;
  for (int i = 0; i < program->descriptor_count; i++) {
    taken[i] = fcntl(program->descriptors[i], F_DUPFD_CLOEXEC, base + 4);
  }
  int input = fcntl(nothing, F_DUPFD_CLOEXEC, base + 4);
  output = fcntl(output, F_DUPFD_CLOEXEC, base + 4);
  *report = fcntl(*report, F_DUPFD_CLOEXEC, base + 4);
  int code = dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0 ? -1 : 0;
  for (int i = 0; i < program->descriptor_count; i++) {
    if (dup2(taken[i], RPC_CONTROL + i) < 0) code = -1;
  }
  if (code != 0 || (*report = dup3(*report, base, O_CLOEXEC)) != base) return "descriptors";
  return syscall(CLOSE_RANGE, (unsigned)base + 1, ~0u, 0) == 0 ? NULL : "closing descriptors";
}

/* Signals as a fresh program has them. */
static void reset_signals(void) {
  sigset_t none;
  for (int number = 1; number < 65; number++) signal(number, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static const char *apply_restrictions(const rpc_program *program, rpc_view *view, const user_maps *maps, long flags) {
  const char *wrong = NULL;
  if (flags & CLONE_NEWUSER) wrong = map_user(maps);
  if (wrong == NULL && (flags & CLONE_NEWNS)) wrong = enter_root(program, view);
  if (wrong == NULL) wrong = drop_capabilities();
  if (wrong != NULL) return wrong;
  int is_confined = rpc_confine_files(program, rpc_device_paths, (flags & CLONE_NEWPID) != 0) == 0;
  return is_confined ? NULL : "landlock";
}

static void run_child(const rpc_program *program, rpc_view *view, const user_maps *maps, long flags, int report) {
  rpc_failure failure = {NULL, 0};
  reset_signals();
  setsid();
  failure.doing = set_descriptors(program, &report);
  if (failure.doing == NULL && program->has_sandbox) {
    failure.doing = apply_restrictions(program, view, maps, flags);
  }
  if (failure.doing == NULL && chdir(program->folder) != 0) failure.doing = "its folder";
  /* After the last change of rights, which would take it back. */
  if (failure.doing == NULL && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
    failure.doing = "an end with its server";
  }
  if (failure.doing == NULL) {
    execve(program->words[0], (char *const *)(uintptr_t)program->words,
           (char *const *)(uintptr_t)program->environment);
    failure.doing = "the program";
  }
  failure.error = errno;
  if (write(report, &failure, sizeof failure) < 0) _exit(126);
  _exit(127);
}

/* The parent ------------------------------------------------------------------------------------ */

/* Starts the program in some namespaces: its process, or -1 with what failed. */
static pid_t try(const rpc_program *program, rpc_view *view, long flags, rpc_failure *failure) {
  int report[2];
  user_maps maps;
  snprintf(maps.users, sizeof maps.users, "0 %u 1", (unsigned)geteuid());
  snprintf(maps.groups, sizeof maps.groups, "0 %u 1", (unsigned)getegid());
  if (pipe2(report, O_CLOEXEC) != 0) {
    *failure = (rpc_failure){"a pipe", errno};
    return -1;
  }
  sigset_t all, before; /* a handler of the caller's would run in the child, too */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid == 0) run_child(program, view, &maps, flags, report[1]);
  int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(report[1]);
  ssize_t count;
  if (pid < 0) *failure = (rpc_failure){"namespaces", error};
  else {
    do count = read(report[0], failure, sizeof *failure);
    while (count < 0 && errno == EINTR);
    if (count != 0) {
      while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
      pid = -1;
    }
  }
  close(report[0]);
  return pid;
}

/* Namespaces, the most first: as any user, as root where users have none, none at all. What one
** machine refuses it refuses the next time, too. */
pid_t rpc_start(const rpc_program *program, unsigned *walls, char *wrong, size_t size) {
  static const long apart = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS
                            | CLONE_NEWCGROUP;
  static int first;
  const long tries[] = {apart | CLONE_NEWUSER, apart, 0};
  rpc_failure failure = {"", 0};
  rpc_view view = {NULL, 0, 0, NULL, NULL};
  pid_t pid = -1;
  int begin = program->has_sandbox && program->max_namespaces != 0 ? first : 2;
  *walls = 0;
  if (plan(&view, program) != 0) failure = (rpc_failure){"a view of files", ENOMEM};
  else for (int i = begin; i < 3 && pid < 0; i++) {
    if (i == 1 && geteuid() != 0) continue;
    pid = try(program, &view, tries[i], &failure);
    if (pid < 0) continue;
    if (begin == first) first = i;
    if (program->has_sandbox) *walls = RPC_LANDLOCK | (i < 2 ? RPC_NAMESPACES : 0u);
    if (program->has_sandbox && i == 0) *walls |= RPC_USER_NAMESPACE;
  }
  view_free(&view);
  if (pid < 0) snprintf(wrong, size, "%s: %s", failure.doing, strerror(failure.error));
  return pid;
}
