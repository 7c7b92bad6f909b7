/* ekiden-rpc: the server as a program.
**
**   ekiden-rpc --port 9090     sessions of clients of this machine, each in a program of its own
**   ekiden-rpc --pipe          one session on standard input and output
**
** A session is a new process of this program, `ekiden-rpc --session`. One is started ahead and
** waits in its sandbox until a client has sent its first message. The server process enforces the
** time and resource limits of sessions, so that a session cannot change them.
*/
#include "ek_rpc.h"
#include "ek_rpc_guard.h"
#include "ek_rpc_sandbox.h"
#include "ek_rpc_variables.h"
#include "ekiden/runtime.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_SESSIONS = 16, MAX_GUESTS = 64, HELLO_SECONDS = 10, MAX_HELLO = 16 << 10, TICK_MS = 100 };
enum { DAY_SECONDS = 86400, HEAD_BYTES = 8, MAX_FOLDERS = 32, FOLDER_BYTES = 64 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const rpc_limits LIMITS = {(uint64_t)8 << 30, (uint64_t)8 << 30, 256, 1024};
static const uint64_t MAX_DISK = (uint64_t)16 << 30;

typedef struct rpc_settings {
  const char *key;
  uint32_t limit;
  int port;
  int is_pipe, is_session, has_sandbox;
} rpc_settings;

/* A session from the server's side. */
typedef struct rpc_slot {
  pid_t pid;                               /* 0: none */
  int control, client;                     /* what it says to the server; its client, or -1 */
  double ends, gone;                       /* when it is to end; when its client went, or 0 */
  char folder[FOLDER_BYTES];
  int lock;                                /* a descriptor of the folder, which is locked */
} rpc_slot;

/* A client that has not said its whole first message. */
typedef struct rpc_guest {
  int connection;
  double ends;
} rpc_guest;

/* A session ------------------------------------------------------------------------------------ */

typedef struct rpc_place {
  const rpc_settings *settings;
  int control;                             /* -1: nobody holds this session's time */
} rpc_place;

/* A client has said HELLO: the server, which holds the time, hears how long it wishes to stay. */
static int begin(void *self, uint32_t milliseconds) {
  const rpc_place *place = self;
  if (place->control >= 0 && write(place->control, &milliseconds, sizeof milliseconds) < 0) {
    return ek_error("RPCError", "rpc: the server has gone");
  }
  if (place->control >= 0) close(place->control);
  return 0;
}

static int serve(const rpc_settings *settings, int in, int out, int control, const char *folder) {
  rpc_place place = {settings, control};
  ek_rpc_fds fds = {in, out};
  ek_rpc_stream stream = ek_rpc_fd_stream(&fds);
  ek_rpc_options options = {settings->key, folder, settings->limit, begin, &place, NULL, 0};
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); /* a file beyond its limit is an error of its writer */
  return ek_rpc_serve(&stream, &options) == 0 ? 0 : 1;
}

/* Removes what a driver has left in the folder: a client finds an empty one. */
static void empty_folder(void) {
  DIR *folder = opendir(".");
  if (folder == NULL) return;
  for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    unlinkat(dirfd(folder), entry->d_name, 0);
  }
  closedir(folder);
}

/* Drivers of devices open what they need while they may. */
static void open_drivers(void) {
  static const int32_t kinds[] = {EK_CUDA, EK_OPENCL, 7 /* Vulkan */, 10 /* ROCm */};
  ek_object *count = ek_registry_get("ek.device.count");
  for (size_t i = 0; count != NULL && i < sizeof kinds / sizeof *kinds; i++) {
    ek_value result = ek_value_none(), device = {.type_index = EK_DEVICE};
    device.v.device = (ek_device){kinds[i], 0};
    if (ek_function_call(count, &device, 1, &result) != 0) ek_object_release(ek_error_take());
    ek_value_release(&result);
  }
  ek_object_release(count);
}

/* Takes the client's two descriptors from the server: 0, or -1 where that has gone. */
static int take_client(int control, int ends[2]) {
  char byte, room[CMSG_SPACE(2 * sizeof(int))];
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
                           .msg_controllen = sizeof room};
  if (recvmsg(control, &message, 0) != 1) return -1;
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  if (head == NULL || head->cmsg_len != CMSG_LEN(2 * sizeof(int))) return -1;
  memcpy(ends, CMSG_DATA(head), 2 * sizeof(int));
  return 0;
}

static int run_session(const rpc_settings *settings, int control) {
  char folder[FOLDER_BYTES];
  int ends[2], has_devices = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dri", F_OK) == 0;
  unsigned walls = 0;
  if (getcwd(folder, sizeof folder) == NULL || read(control, &walls, sizeof walls) != sizeof walls) {
    return 1;
  }
  open_drivers();
  empty_folder();
  if (rpc_close(&LIMITS, walls, has_devices) != NULL) return 1;
  if (take_client(control, ends) != 0) return 1;
  return serve(settings, ends[0], ends[1], control, folder);
}

/* A session that is this process itself: one that is trusted, whose program cannot be started again
** where an emulator runs it. */
static int run_trusted(const rpc_settings *settings, int in, int out, const char *folder) {
  return chdir(folder) == 0 ? serve(settings, in, out, -1, folder) : 1;
}

/* Control of sessions ---------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place) {
  (void)about, (void)kind, (void)place;
  remove(path);
  return 0;
}

#define FOLDER_PREFIX "ekiden-session-"

static const char *base_folder(void) {
  const char *base = getenv("TMPDIR");
  return base != NULL && strlen(base) <= 40 ? base : "/tmp";
}

/* Makes a folder of a session, of FOLDER_BYTES; a descriptor that holds its lock, or -1. The kernel
** drops the lock with this process, however it ends: then the next server removes the folder. It
** has another name until it is locked, so that no server takes it for one that was left. */
static int make_folder(char *folder) {
  char unlocked[FOLDER_BYTES];
  snprintf(unlocked, sizeof unlocked, "%.40s/ekiden-rpc-XXXXXX", base_folder());
  if (mkdtemp(unlocked) == NULL) return -1;
  int lock = open(unlocked, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return -1;
  flock(lock, LOCK_EX | LOCK_NB); /* without locks nothing is found to be stale */
  snprintf(folder, FOLDER_BYTES, "%.40s/" FOLDER_PREFIX "%.6s", base_folder(),
           unlocked + strlen(unlocked) - 6);
  if (rename(unlocked, folder) == 0) return lock;
  close(lock);
  rmdir(unlocked);
  return -1;
}

static void remove_tree(const char *folder) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void remove_folder(const char *folder, int lock) {
  remove_tree(folder);
  close(lock);
}

/* Removes folders of sessions whose server was killed: this user's own, whose lock nobody holds. */
static void remove_stale_folders(void) {
  DIR *base = opendir(base_folder());
  if (base == NULL) return;
  for (struct dirent *entry = readdir(base); entry != NULL; entry = readdir(base)) {
    char path[FOLDER_BYTES + sizeof entry->d_name];
    struct stat about;
    if (strncmp(entry->d_name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0) continue;
    int lock = openat(dirfd(base), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0) continue;
    if (fstat(lock, &about) == 0 && about.st_uid == geteuid() && flock(lock, LOCK_EX | LOCK_NB) == 0) {
      snprintf(path, sizeof path, "%.40s/%s", base_folder(), entry->d_name);
      remove_tree(path);
    }
    close(lock);
  }
  closedir(base);
}

static int number_of(const char *variable) {
  const char *text = getenv(variable);
  return text == NULL || *text == 0 ? -1 : atoi(text);
}

/* The variables of this process that a session has, as 'made', which the caller frees. */
static void keep_variables(char **text, const char **environment) {
  for (size_t i = 0; i < COUNT(rpc_variables); i++) {
    const char *value = getenv(rpc_variables[i]);
    if (value == NULL) continue;
    size_t size = strlen(rpc_variables[i]) + strlen(value) + 2;
    if ((text[i] = malloc(size)) == NULL) continue;
    snprintf(text[i], size, "%s=%s", rpc_variables[i], value);
    *environment++ = text[i];
  }
}

/* The folders that such variables name, as parts of 'made', which the caller frees. */
static void keep_folders(char **text, const char **readable) {
  size_t size = 1, count = 0;
  for (int i = 0; i < RPC_FOLDER_VARIABLES; i++) {
    const char *value = getenv(rpc_variables[i]);
    size += value == NULL ? 0 : strlen(value) + 1;
  }
  if ((*text = calloc(1, size)) == NULL) return;
  for (int i = 0; i < RPC_FOLDER_VARIABLES; i++) {
    const char *value = getenv(rpc_variables[i]);
    if (value != NULL) strcat(strcat(*text, value), ":");
  }
  for (char *at = *text; *at != 0 && count < MAX_FOLDERS; at += strlen(at) + 1) {
    char *end = strchr(at, ':');
    if (end == NULL) break;
    *end = 0;
    if (at[0] == '/') readable[count++] = at;
  }
}

/* Starts the program of a session. 0, or -1 with the reason on standard error. */
static int start(const rpc_settings *settings, rpc_slot *slot) {
  char limit[16], wrong[256], program[1024];
  int control[2];
  unsigned walls = 0;
  ssize_t count = readlink("/proc/self/exe", program, sizeof program - 1);
  if (count < 0 || (slot->lock = make_folder(slot->folder)) < 0) return -1;
  program[count] = 0;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
    remove_folder(slot->folder, slot->lock);
    return -1;
  }
  snprintf(limit, sizeof limit, "%u", (unsigned)settings->limit);
  char home[80], temporary[80], cache[80], *folders = NULL, *kept[COUNT(rpc_variables)] = {0};
  const char *words[] = {program, "--session", "--limit", limit,
                         settings->key == NULL ? NULL : "--key", settings->key, NULL};
  const char *environment[COUNT(rpc_variables) + 5] = {home, temporary, cache, "EKIDEN_SESSION=1"};
  const char *readable[MAX_FOLDERS + 2] = {program};
  snprintf(home, sizeof home, "HOME=%s", slot->folder);
  snprintf(temporary, sizeof temporary, "TMPDIR=%s", slot->folder);
  snprintf(cache, sizeof cache, "POCL_CACHE_DIR=%s", slot->folder);
  keep_variables(kept, environment + 4);
  keep_folders(&folders, readable + 1);
  rpc_program started = {words, environment, slot->folder, readable, &control[1], 1, -1, 1,
                         number_of("EKIDEN_RPC_MAX_LANDLOCK"), number_of("EKIDEN_RPC_NAMESPACES")};
  slot->pid = rpc_start(&started, &walls, wrong, sizeof wrong);
  for (size_t i = 0; i < COUNT(kept); i++) free(kept[i]);
  free(folders);
  close(control[1]);
  slot->control = control[0], slot->client = -1;
  slot->ends = rpc_seconds() + 1e9, slot->gone = 0;
  if (slot->pid > 0 && send(control[0], &walls, sizeof walls, MSG_NOSIGNAL) == sizeof walls) return 0;
  if (slot->pid < 0) fprintf(stderr, "ekiden-rpc: no session: %s\n", wrong);
  close(control[0]);
  remove_folder(slot->folder, slot->lock);
  slot->pid = 0;
  return -1;
}

/* Gives a client to the program that waits. */
static void give(rpc_slot *slot, int in, int out) {
  char byte = 0, room[CMSG_SPACE(2 * sizeof(int))] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
                           .msg_controllen = sizeof room};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  int ends[2] = {in, out};
  head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof ends);
  memcpy(CMSG_DATA(head), ends, sizeof ends);
  slot->client = in, slot->ends = rpc_seconds() + DAY_SECONDS;
  if (sendmsg(slot->control, &message, MSG_NOSIGNAL) != 1) kill(slot->pid, SIGKILL);
}

/* A session says how long its client wishes to stay: it can but shorten its time. */
static void read_request(rpc_slot *slot) {
  uint32_t milliseconds = 0;
  if (recv(slot->control, &milliseconds, sizeof milliseconds, MSG_DONTWAIT) == sizeof milliseconds
      && milliseconds > 0 && milliseconds / 1e3 < DAY_SECONDS) {
    slot->ends = rpc_seconds() + milliseconds / 1e3;
  }
  close(slot->control);
  slot->control = -1;
}

static void end(rpc_slot *slot, int is_running) {
  if (is_running) kill(slot->pid, SIGKILL);
  if (is_running) waitpid(slot->pid, NULL, 0);
  if (slot->control >= 0) close(slot->control);
  if (slot->client >= 0) close(slot->client);
  remove_folder(slot->folder, slot->lock);
  slot->pid = 0;
}

/* Ends a session whose program has ended, whose time is over, whose client went a second ago, or
** that takes more than it may. */
static void watch(rpc_slot *slot) {
  double now = rpc_seconds();
  if (slot->pid == 0) return;
  if (waitpid(slot->pid, NULL, WNOHANG) == slot->pid) {
    end(slot, 0);
    return;
  }
  int is_over = now > slot->ends || (slot->gone > 0 && now > slot->gone + 1)
                || rpc_threads_of(slot->pid) > LIMITS.threads
                || rpc_disk_of(slot->pid, slot->folder) > MAX_DISK;
  if (is_over) end(slot, 1);
}

/* The server ----------------------------------------------------------------------------------- */

static int listen_at(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  socklen_t size = sizeof address;
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0
      || listen(listener, 64) != 0 || getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
    fprintf(stderr, "ekiden-rpc: listen on port %d: %s\n", port, strerror(errno));
    return -1;
  }
  printf("server on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

/* A trusted session is a copy of this process, which has one thread. */
static void start_trusted(const rpc_settings *settings, int listener, int client, rpc_slot *slot) {
  int parent = getpid();
  if ((slot->lock = make_folder(slot->folder)) < 0) return;
  slot->pid = fork();
  if (slot->pid == 0) {
    rpc_die_with(parent);
    close(listener);
    _exit(run_trusted(settings, client, client, slot->folder));
  }
  slot->control = -1, slot->client = dup(client);
  slot->ends = rpc_seconds() + DAY_SECONDS, slot->gone = 0;
  if (slot->pid < 0) slot->pid = 0;
}

static void accept_client(int listener, rpc_guest *guests) {
  int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1, head = HEAD_BYTES, oldest = 0;
  if (connection < 0) return;
  for (int i = 0; i < MAX_GUESTS; i++) {
    if (guests[i].ends < guests[oldest].ends) oldest = i;
  }
  rpc_guest *guest = &guests[oldest]; /* a free one, whose time is 0, or who has had the most */
  if (guest->ends > 0) close(guest->connection);
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &head, sizeof head);
  *guest = (rpc_guest){connection, rpc_seconds() + HELLO_SECONDS};
}

/* Whether the whole first message has come, which its session will read: 1, 0 for not yet, -1 for
** what is none. The kernel wakes us when as much is there. */
static int has_sent_hello(int connection) {
  uint8_t head[HEAD_BYTES];
  ssize_t count = recv(connection, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN)) return -1;
  if (count < HEAD_BYTES) return 0;
  uint32_t size = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
  int whole = HEAD_BYTES + (int)(size & 0xFFFFFF), available = 0;
  if (size > MAX_HELLO) return -1;
  setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &whole, sizeof whole);
  return rpc_available(connection, &available) == 0 && available >= whole;
}

/* A free slot with a program that waits for a client where 'is_waiting', else one without. */
static rpc_slot *slot_of(rpc_slot *slots, int is_waiting) {
  for (int i = 0; i < MAX_SESSIONS; i++) {
    int waits = slots[i].pid != 0 && slots[i].client < 0;
    if (is_waiting ? waits : slots[i].pid == 0) return &slots[i];
  }
  return NULL;
}

/* Seats a guest who has said HELLO; 0 where all places are taken. */
static int seat(const rpc_settings *settings, int listener, rpc_guest *guest, rpc_slot *slots) {
  int one = 1;
  rpc_slot *slot = slot_of(slots, settings->has_sandbox);
  if (slot == NULL && settings->has_sandbox) {
    slot = slot_of(slots, 0);
    if (slot == NULL) return 0;
    if (start(settings, slot) != 0) {
      close(guest->connection);
      guest->ends = 0;
      return 1;
    }
  }
  if (slot == NULL) return 0;
  setsockopt(guest->connection, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  if (settings->has_sandbox) {
    give(slot, guest->connection, guest->connection);
  } else {
    start_trusted(settings, listener, guest->connection, slot);
    close(guest->connection);
  }
  guest->ends = 0;
  return 1;
}

static void greet(const rpc_settings *settings, int listener, rpc_guest *guests, rpc_slot *slots) {
  for (int i = 0; i < MAX_GUESTS; i++) {
    rpc_guest *guest = &guests[i];
    if (guest->ends <= 0) continue;
    int said = has_sent_hello(guest->connection);
    if (said > 0 && seat(settings, listener, guest, slots)) continue;
    if (said < 0 || rpc_seconds() > guest->ends) {
      close(guest->connection);
      guest->ends = 0;
    }
  }
}

/* Waits for what comes first: a client, its first message, what a session says, a moment. */
static void wait_for_events(int listener, const rpc_guest *guests, rpc_slot *slots) {
  struct pollfd all[1 + MAX_GUESTS + 2 * MAX_SESSIONS] = {{listener, POLLIN, 0}};
  int whose[1 + MAX_GUESTS + 2 * MAX_SESSIONS] = {0}, count = 1;
  for (int i = 0; i < MAX_GUESTS; i++) {
    if (guests[i].ends > 0) all[count++] = (struct pollfd){guests[i].connection, POLLIN, 0};
  }
  int first = count;
  for (int i = 0; i < MAX_SESSIONS; i++) {
    if (slots[i].pid == 0 || slots[i].client < 0) continue;
    whose[count] = i;
    if (slots[i].control >= 0) all[count++] = (struct pollfd){slots[i].control, POLLIN, 0};
    whose[count] = i;
    if (slots[i].gone <= 0) all[count++] = (struct pollfd){slots[i].client, POLLRDHUP, 0};
  }
  if (poll(all, (nfds_t)count, TICK_MS) < 1) return;
  for (int i = first; i < count; i++) {
    rpc_slot *slot = &slots[whose[i]];
    if (all[i].revents == 0) continue;
    if (all[i].fd == slot->control) read_request(slot);
    else if (all[i].fd == slot->client) slot->gone = rpc_seconds();
  }
}

static int run_server(const rpc_settings *settings) {
  static rpc_slot slots[MAX_SESSIONS];
  static rpc_guest guests[MAX_GUESTS];
  int parent = getppid(), listener = listen_at(settings->port);
  double rests_until = 0; /* what has failed fails again, a second later */
  if (listener < 0) return 1;
  remove_stale_folders();
  while (getppid() == parent) {
    rpc_slot *room = slot_of(slots, 0);
    int is_wanted = settings->has_sandbox && room != NULL && slot_of(slots, 1) == NULL;
    if (is_wanted && rpc_seconds() > rests_until && start(settings, room) != 0) {
      rests_until = rpc_seconds() + 1;
    }
    wait_for_events(listener, guests, slots);
    for (int i = 0; i < MAX_SESSIONS; i++) watch(&slots[i]);
    accept_client(listener, guests);
    greet(settings, listener, guests, slots);
  }
  for (int i = 0; i < MAX_SESSIONS; i++) {
    if (slots[i].pid != 0) end(&slots[i], 1);
  }
  return 0;
}

/* Run one session on standard input and output in a child process, and wait for it. */
static int run_pipe(const rpc_settings *settings) {
  rpc_slot slot = {0};
  char folder[FOLDER_BYTES];
  int out = dup(STDOUT_FILENO), in = dup(STDIN_FILENO);
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (out < 0 || in < 0 || nothing < 0) return 1;
  dup2(nothing, STDIN_FILENO); /* what prints must not come between messages */
  dup2(STDERR_FILENO, STDOUT_FILENO);
  if (!settings->has_sandbox) {
    int lock = make_folder(folder);
    if (lock < 0) return 1;
    int code = run_trusted(settings, in, out, folder);
    remove_folder(folder, lock);
    return code;
  }
  if (start(settings, &slot) != 0) return 1;
  give(&slot, in, out);
  close(out);
  while (slot.pid != 0) {
    struct pollfd all[] = {{slot.client, 0, 0}, {slot.control, POLLIN, 0}};
    poll(all, slot.control >= 0 ? 2 : 1, TICK_MS);
    if (slot.control >= 0 && all[1].revents != 0) read_request(&slot);
    if (all[0].revents != 0 && slot.gone <= 0) slot.gone = rpc_seconds();
    watch(&slot);
  }
  return 0;
}

static int usage(void) {
  fputs("ekiden-rpc --port N | --pipe [--key NAME] [--limit BYTES] [--no-sandbox]\n"
        "Serves sessions of Ekiden's clients on this machine's own interface, or one on standard\n"
        "input and output. Others reach it through a tunnel (ssh -L) or a proxy.\n", stderr);
  return 2;
}

int main(int count, char **words) {
  rpc_settings settings = {.limit = (1 << 20) + 4096, .port = -1, .has_sandbox = 1}; /* a MB and a head */
  for (int i = 1; i < count; i++) {
    const char *value = i + 1 < count ? words[i + 1] : NULL;
    if (strcmp(words[i], "--pipe") == 0) settings.is_pipe = 1;
    else if (strcmp(words[i], "--session") == 0) settings.is_session = 1;
    else if (strcmp(words[i], "--no-sandbox") == 0) settings.has_sandbox = 0;
    else if (value == NULL) return usage();
    else if (strcmp(words[i], "--key") == 0) settings.key = words[++i];
    else if (strcmp(words[i], "--port") == 0) settings.port = atoi(words[++i]);
    else if (strcmp(words[i], "--limit") == 0) settings.limit = (uint32_t)strtoul(words[++i], NULL, 10);
    else return usage();
  }
  if (settings.is_session) return run_session(&settings, RPC_CONTROL);
  if (settings.is_pipe == (settings.port >= 0) || settings.port > 65535 || settings.limit < 4096) {
    return usage();
  }
  const char *lack = settings.has_sandbox ? rpc_lack() : NULL;
  if (lack != NULL) {
    fprintf(stderr, "ekiden-rpc: no sandbox here: %s; or: --no-sandbox\n", lack);
    return 1;
  }
  return settings.is_pipe ? run_pipe(&settings) : run_server(&settings);
}
