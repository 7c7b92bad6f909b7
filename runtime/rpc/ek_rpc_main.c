/* ekiden-rpc: the server as a program.
**
**   ekiden-rpc --port 9090     sessions of clients of this machine, each in a process of its own
**   ekiden-rpc --pipe          one session on standard input and output
*/
#include "ek_rpc.h"
#include "ek_rpc_sandbox.h"
#include "ekiden/runtime.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_SESSIONS = 16, HELLO_SECONDS = 20 };

typedef struct rpc_slot {
  pid_t pid;                               /* 0: none */
  char folder[64];
} rpc_slot;

typedef struct rpc_settings {
  const char *key;
  uint32_t limit;
  int port;
  int is_pipe, has_sandbox;
} rpc_settings;

typedef struct rpc_place {
  int connection;
  const rpc_settings *settings;
  const char *folder;
} rpc_place;

/* A session ------------------------------------------------------------------------------------ */

/* Ends the process when its client has gone, whatever runs here. */
static void *watch(void *self) {
  struct pollfd connection = {*(int *)self, POLLRDHUP, 0};
  while (poll(&connection, 1, -1) < 1) continue;
  sleep(1); /* the session ends by itself, unless something runs that does not */
  _exit(1);
}

static int begin(void *self, uint32_t milliseconds) {
  static int connection;
  const rpc_place *place = self;
  struct itimerval timer = {{0, 0}, {milliseconds / 1000, (suseconds_t)(milliseconds % 1000) * 1000}};
  pthread_t thread;
  setitimer(ITIMER_REAL, &timer, NULL); /* also takes back that of HELLO */
  connection = place->connection;
  if (!place->settings->is_pipe && pthread_create(&thread, NULL, watch, &connection) != 0) {
    return ek_error("RPCError", "rpc: no thread that watches the client");
  }
  const char *wrong = place->settings->has_sandbox ? rpc_sandbox(place->folder) : NULL;
  return wrong == NULL ? 0 : ek_error("RPCError", "rpc: no sandbox here: %s", wrong);
}

static int serve(const rpc_settings *settings, int in, int out, const char *folder) {
  rpc_place place = {in, settings, folder};
  ek_rpc_ends ends = {in, out};
  ek_rpc_stream stream = ek_rpc_stream_of(&ends);
  ek_rpc_options options = {settings->key, folder, settings->limit, begin, &place, NULL, 0};
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); /* a file beyond its limit is an error of its writer */
  return ek_rpc_serve(&stream, &options) == 0 ? 0 : 1;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place) {
  (void)about, (void)kind, (void)place;
  remove(path);
  return 0;
}

static int make_folder(char *folder, size_t size) {
  const char *base = getenv("TMPDIR");
  snprintf(folder, size, "%.40s/ekiden-rpc-XXXXXX", base != NULL && strlen(base) < 40 ? base : "/tmp");
  return mkdtemp(folder) == NULL ? -1 : 0;
}

static void remove_folder(const char *folder) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* The server ----------------------------------------------------------------------------------- */

static int listen_at(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  socklen_t size = sizeof address;
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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

static void start(const rpc_settings *settings, int listener, int connection, rpc_slot *slot) {
  int one = 1, parent = getpid();
  if (make_folder(slot->folder, sizeof slot->folder) != 0) return;
  slot->pid = fork();
  if (slot->pid != 0) {
    if (slot->pid < 0) slot->pid = 0;
    return;
  }
  rpc_die_with_parent(parent);
  close(listener);
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  alarm(HELLO_SECONDS);
  if (chdir(slot->folder) != 0) _exit(1);
  _exit(serve(settings, connection, connection, slot->folder));
}

/* Takes up sessions that have ended: how many go on. */
static int reap(rpc_slot *slots) {
  int running = 0;
  for (int i = 0; i < MAX_SESSIONS; i++) {
    if (slots[i].pid == 0) continue;
    if (waitpid(slots[i].pid, NULL, WNOHANG) == slots[i].pid) {
      remove_folder(slots[i].folder);
      slots[i].pid = 0;
    }
    running += slots[i].pid != 0;
  }
  return running;
}

static int run_server(const rpc_settings *settings) {
  static rpc_slot slots[MAX_SESSIONS];
  int parent = getppid(), listener = listen_at(settings->port);
  if (listener < 0) return 1;
  while (getppid() == parent) {
    struct pollfd coming = {listener, POLLIN, 0};
    int running = reap(slots);
    if (running == MAX_SESSIONS || poll(&coming, 1, 200) < 1) {
      if (running == MAX_SESSIONS) usleep(20000);
      continue;
    }
    int connection = accept(listener, NULL, NULL), i = 0;
    if (connection < 0) continue;
    while (slots[i].pid != 0) i++;
    start(settings, listener, connection, &slots[i]);
    close(connection);
  }
  for (int i = 0; i < MAX_SESSIONS; i++) {
    if (slots[i].pid == 0) continue;
    kill(slots[i].pid, SIGKILL);
    waitpid(slots[i].pid, NULL, 0);
    remove_folder(slots[i].folder);
  }
  return 0;
}

static int run_pipe(const rpc_settings *settings) {
  char folder[64];
  /* What prints must not come between messages. */
  int out = dup(STDOUT_FILENO), nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  int in = dup(STDIN_FILENO);
  if (out < 0 || in < 0 || nothing < 0 || make_folder(folder, sizeof folder) != 0) return 1;
  dup2(nothing, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  int code = serve(settings, in, out, folder);
  remove_folder(folder);
  return code;
}

static int usage(void) {
  fputs("ekiden-rpc --port N | --pipe [--key NAME] [--limit BYTES] [--no-sandbox]\n"
        "Serves sessions of Ekiden's clients on this machine's own interface, or one on standard\n"
        "input and output. Others reach it through a tunnel (ssh -L) or a proxy.\n", stderr);
  return 2;
}

int main(int count, char **words) {
  rpc_settings settings = {NULL, (1 << 20) + 4096, -1, 0, 1}; /* a piece of a MB, and its head */
  for (int i = 1; i < count; i++) {
    const char *value = i + 1 < count ? words[i + 1] : NULL;
    if (strcmp(words[i], "--pipe") == 0) settings.is_pipe = 1;
    else if (strcmp(words[i], "--no-sandbox") == 0) settings.has_sandbox = 0;
    else if (value == NULL) return usage();
    else if (strcmp(words[i], "--key") == 0) settings.key = words[++i];
    else if (strcmp(words[i], "--port") == 0) settings.port = atoi(words[++i]);
    else if (strcmp(words[i], "--limit") == 0) settings.limit = (uint32_t)strtoul(words[++i], NULL, 10);
    else return usage();
  }
  if (settings.is_pipe == (settings.port >= 0) || settings.port > 65535 || settings.limit < 4096) {
    return usage();
  }
  return settings.is_pipe ? run_pipe(&settings) : run_server(&settings);
}
