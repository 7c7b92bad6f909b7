/* What code that a client sends may try from inside a session. Functions of one argument or none,
** which give the result of a call of the kernel: -1 where it is refused, and errno by 'last_error'.
** They use what is inline in the header alone, as nothing of the runtime is seen here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <utime.h>

#include "ekiden/runtime.h"

static int error;

#define ATTACK(name, what)                                                                    \
  int __tvm_ffi_##name(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {      \
    (void)self;                                                                               \
    const char *text = nargs > 0 ? text_of(&args[0]) : "";                                    \
    (void)text;                                                                               \
    errno = 0;                                                                                \
    *ret = ek_value_int((int64_t)(what));                                                     \
    error = errno;                                                                            \
    return 0;                                                                                 \
  }

static char text_room[4096];

static const char *text_of(const ek_value *value) {
  ek_bytes bytes = {"", 0};
  ek_string_borrow(value, &bytes);
  size_t size = bytes.size < sizeof text_room - 1 ? bytes.size : sizeof text_room - 1;
  memcpy(text_room, bytes.data, size);
  text_room[size] = 0;
  return text_room;
}

int __tvm_ffi_last_error(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs;
  *ret = ek_value_int(error);
  return 0;
}

/* The terminal */
static int push_into_terminal(void) {
  for (int fd = 0; fd < 256; fd++) {
    if (ioctl(fd, TIOCSTI, "x") == 0) return 0;
  }
  int terminal = open("/dev/tty", O_RDWR);
  return terminal < 0 ? -1 : 0;
}
static int own_terminals(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += isatty(fd);
  return count == 0 ? -1 : count;
}
ATTACK(terminal_injection, push_into_terminal())
ATTACK(terminal_at_hand, own_terminals())
ATTACK(terminal_paste, ioctl(0, TIOCLINUX, "\3"))

/* Files outside */
ATTACK(truncate_a_file, truncate(text, 0))
ATTACK(truncate_by_opening, open(text, O_RDONLY | O_TRUNC))
ATTACK(truncate_by_access_mode_3, open(text, 3 | O_TRUNC))
ATTACK(open_a_path, open(text, O_PATH))
ATTACK(read_a_file, open(text, O_RDONLY))
ATTACK(write_a_file, open(text, O_WRONLY))
ATTACK(make_a_file, open("/tmp/ekiden-rpc-hostile", O_WRONLY | O_CREAT, 0600))
ATTACK(change_times, utimensat(AT_FDCWD, text, NULL, 0))
ATTACK(change_times_by_name, utimes(text, NULL))
ATTACK(change_mode, chmod(text, 0777))
ATTACK(change_owner, chown(text, 0, 0))
ATTACK(change_attributes, syscall(SYS_setxattr, text, "user.x", "1", 1, 0))
ATTACK(watch_a_file, inotify_add_watch(inotify_init(), text, IN_ALL_EVENTS))
ATTACK(watch_the_machine, syscall(SYS_fanotify_init, 0, O_RDONLY))
ATTACK(link_a_file, link(text, "here"))
ATTACK(link_to_a_file, symlink(text, "here"))
ATTACK(make_a_folder, mkdir("folder", 0700))
ATTACK(make_a_pipe, mkfifo("pipe", 0600))
ATTACK(change_folder, chdir("/"))
ATTACK(change_root, chroot("/"))
ATTACK(about_the_disk, syscall(SYS_statfs, "/", text_room))
struct stat about;
ATTACK(see_a_file, stat(text, &about))
ATTACK(see_access, access(text, F_OK))
ATTACK(see_a_folder, opendir(text) == NULL ? -1 : 0)

/* Others: sockets, processes, memory of several */
static int pair[2];
static int sendto_someone(void) {
  struct sockaddr_un address = {AF_UNIX, "/dev/log"};
  for (int fd = 0; fd < 256; fd++) {
    if (sendto(fd, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address) >= 0) return 0;
  }
  return -1;
}
ATTACK(socket_pair, socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
ATTACK(socket_of_network, socket(AF_INET, SOCK_STREAM, 0))
ATTACK(socket_of_machine, socket(AF_UNIX, SOCK_DGRAM, 0))
ATTACK(socket_of_kernel, socket(AF_NETLINK, SOCK_RAW, 0))
ATTACK(send_to_an_address, sendto_someone())
ATTACK(send_descriptors, syscall(SYS_sendmsg, 0, text_room, 0))
ATTACK(priority_of_another, setpriority(PRIO_PROCESS, (id_t)atoi(text), 19))
ATTACK(priority_of_user, setpriority(PRIO_USER, 0, 19))
ATTACK(cores_of_another, sched_setaffinity(atoi(text), sizeof(cpu_set_t), &(cpu_set_t){{1}}))
ATTACK(scheduler_of_another, sched_setscheduler(atoi(text), SCHED_IDLE, &(struct sched_param){0}))
ATTACK(attributes_of_another, syscall(SYS_sched_setattr, atoi(text), text_room, 0))
ATTACK(disk_priority_of_another, syscall(SYS_ioprio_set, 1, atoi(text), 0))
ATTACK(limits_of_another, syscall(SYS_prlimit64, atoi(text), RLIMIT_CPU, &(struct rlimit){1, 1}, NULL))
ATTACK(own_limits, syscall(SYS_prlimit64, 0, RLIMIT_CPU, &(struct rlimit){1, 1}, NULL))
ATTACK(kill_another, kill(atoi(text), SIGKILL))
ATTACK(kill_all, kill(-1, SIGKILL))
ATTACK(kill_a_thread, syscall(SYS_tkill, atoi(text), SIGKILL))
ATTACK(trace_another, syscall(SYS_ptrace, 16, atoi(text), 0, 0))
ATTACK(memory_of_another, syscall(SYS_process_vm_readv, atoi(text), text_room, 1, text_room, 1, 0))
ATTACK(descriptor_of_process, syscall(434 /* pidfd_open */, atoi(text), 0))
ATTACK(signals_sent_of_pipes, fcntl(1, F_SETOWN, atoi(text)))
ATTACK(signals_sent_of_sockets, ioctl(1, 0x8901, &(int){1}))
ATTACK(lock_a_file, fcntl(open(text, O_RDONLY), F_SETLK, &(struct flock){F_RDLCK, 0, 0, 0, 0}))
ATTACK(shared_memory, shmget(0x4b45, 4096, IPC_CREAT | 0600))
ATTACK(shared_memory_attached, shmat(atoi(text), NULL, 0) == (void *)-1 ? -1 : 0)
ATTACK(semaphores, semget(0x4b45, 1, IPC_CREAT | 0600))
ATTACK(messages, msgget(0x4b45, IPC_CREAT | 0600))
ATTACK(message_queue, syscall(SYS_mq_open, "q", O_CREAT | O_RDWR, 0600, NULL))
ATTACK(memory_file, syscall(SYS_memfd_create, "m", 0))
ATTACK(secret_memory, syscall(447 /* memfd_secret */, 0))

/* Programs, and its own end */
static char *no_words[] = {NULL};
ATTACK(fork_itself, fork())
ATTACK(run_a_program, execve("/usr/bin/true", no_words, no_words))
ATTACK(clone_into_namespace, syscall(SYS_clone, 0x10000000 | CLONE_VM | CLONE_THREAD | CLONE_SIGHAND, 0))
ATTACK(new_namespace, unshare(CLONE_NEWUSER))
ATTACK(join_namespace, setns(0, 0))
ATTACK(death_signal, prctl(PR_SET_PDEATHSIG, 0))
ATTACK(dumpable, prctl(PR_SET_DUMPABLE, 0))
ATTACK(new_session, setsid())
ATTACK(timer, setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL))
ATTACK(personality, syscall(SYS_personality, 0x0040000))

/* What root may */
ATTACK(host_name, sethostname("x", 1))
ATTACK(domain_name, syscall(SYS_setdomainname, "x", 1))
ATTACK(file_system, syscall(430 /* fsopen */, "tmpfs", 0))
ATTACK(mount_one, syscall(SYS_mount, "tmpfs", "/tmp", "tmpfs", 0, NULL))
ATTACK(new_root, syscall(SYS_pivot_root, "/", "/"))
ATTACK(swap, syscall(SYS_swapon, "/dev/zero", 0))
ATTACK(accounting, syscall(SYS_acct, "/tmp/x"))
ATTACK(clock, settimeofday(&(struct timeval){0, 0}, NULL))
ATTACK(kernel_module, syscall(SYS_init_module, text_room, 0, ""))
ATTACK(kernel_log, syscall(SYS_syslog, 3, text_room, 100))
ATTACK(kernel_programs, syscall(SYS_bpf, 0, text_room, 10))
ATTACK(kernel_keys, syscall(SYS_add_key, "user", "x", "y", 1, -3))
ATTACK(performance_events, syscall(SYS_perf_event_open, text_room, 0, -1, -1, 0))
ATTACK(page_faults, syscall(SYS_userfaultfd, 0))
ATTACK(rings, syscall(425 /* io_uring_setup */, 1, text_room))
ATTACK(hang_up, syscall(SYS_vhangup))
ATTACK(restart, syscall(SYS_reboot, 0, 0, 0, 0))
ATTACK(file_handles, syscall(SYS_open_by_handle_at, 0, text_room, 0))
ATTACK(other_user, setuid(1))

/* Looks for a text, whose bytes are one less here, in all memory of the process: how often. */
static long count_in_memory(const char *hidden) {
  size_t size = strlen(hidden);
  char line[512], wanted[256];
  long count = 0;
  for (size_t i = 0; i <= size; i++) wanted[i] = (char)(hidden[i] + (i < size));
  FILE *maps = fopen("/proc/self/maps", "r");
  int memory = open("/proc/self/mem", O_RDONLY);
  if (maps == NULL || memory < 0) return -2;
  size_t room = 1 << 20;
  char *piece = malloc(room);
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long first, last;
    char rights[8];
    if (sscanf(line, "%lx-%lx %7s", &first, &last, rights) != 3 || rights[0] != 'r') continue;
    for (unsigned long at = first; at < last; at += room - 256) {
      size_t most = last - at < room ? last - at : room;
      ssize_t got = pread(memory, piece, most, (off_t)at);
      if (got < (ssize_t)size) break;
      for (ssize_t i = 0; i + (ssize_t)size <= got; i++) {
        unsigned long address = at + (unsigned long)i;
        int is_own = address == (unsigned long)wanted
                     || (address >= (unsigned long)piece && address < (unsigned long)piece + room);
        count += !is_own && memcmp(piece + i, wanted, size) == 0;
      }
    }
  }
  free(piece);
  memset(wanted, 0, sizeof wanted);
  return count == 0 ? -1 : count;
}
ATTACK(secret_in_memory, count_in_memory(text))

/* Makes so many threads: how many there are, or -1. */
static void *sleep_on(void *self) {
  for (;;) select(0, NULL, NULL, NULL, NULL);
  return self;
}
static long make_threads(int wanted) {
  pthread_attr_t small;
  pthread_t thread;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 16384);
  long made = 0;
  while (made < wanted && pthread_create(&thread, &small, sleep_on, NULL) == 0) made++;
  return made;
}
ATTACK(many_threads, make_threads(atoi(text)))

/* Fills its folder: how many bytes it could write. */
static long fill_folder(long wanted, int is_removed) {
  static char block[1 << 16];
  int file = open("fill", O_WRONLY | O_CREAT, 0600);
  if (is_removed) unlink("fill");
  long done = 0;
  memset(block, 1, sizeof block);
  while (done < wanted && write(file, block, sizeof block) > 0) done += sizeof block;
  for (int i = 0; i < 600; i++) usleep(50000); /* the server looks meanwhile */
  return done;
}
ATTACK(fill_the_disk, fill_folder(atol(text), 0))
ATTACK(fill_the_disk_unseen, fill_folder(atol(text), 1))

static int spin(void) {
  for (volatile int i = 0;; i++) continue;
  return 0;
}
ATTACK(spin_on, spin())

/* Whether a call ends who makes it, or is made by the kernel's own probes and passes no filter. */
static int is_left_out(int number) {
#ifdef __x86_64__
  if (number == 335 || number == 336) return 1; /* uretprobe, uprobe */
#endif
  return number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn;
}

/* Writes to the file 'calls' a byte for each number of a call: its error, called with no sense; 1
** for what is left out. */
static int call_all(int count) {
  unsigned char *errors = calloc(1, (size_t)count);
  for (int number = 0; number < count; number++) {
    errors[number] = 1;
    if (is_left_out(number)) continue;
    errno = 0;
    long code = syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
    errors[number] = code == -1 ? (unsigned char)errno : 0;
  }
  umask(022);
  int file = open("calls", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  return write(file, errors, (size_t)count) == count ? -1 : 0;
}
ATTACK(call_all_numbers, call_all(atoi(text)))
