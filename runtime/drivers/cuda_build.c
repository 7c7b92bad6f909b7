/* Compile CUDA C with NVRTC, a library of the CUDA toolkit and of a PyPI package. Besides the
** loader's search path, the site-packages folder in which Ekiden is installed is searched. */
#include "cuda_build.h"

#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_api.h"
#include "driver_cache.h"
#include "driver_log.h"

enum { OLDEST = 11, PATH = 1024, MAX_OPTIONS = 4, MAX_KINDS = 64 };

static nvrtc_api nvrtc;
static int version;                       /* of NVRTC, 1300 for 13.0; 0 until it is found */
static char headers[PATH + 32];                /* the option that names CUDA's headers, or "" */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards looking for it */

/* Finding it ----------------------------------------------------------------------------------- */

static void *open_matching(const char *pattern) {
  glob_t found;
  void *library = NULL;
  if (glob(pattern, 0, NULL, &found) != 0) return NULL;
  for (size_t i = 0; i < found.gl_pathc && library == NULL; i++) {
    library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
  }
  globfree(&found);
  return library;
}

/* The NVRTC of a version, else that of the packages beside Ekiden's. */
static void *open_version(int major) {
  char name[64], pattern[PATH];
  Dl_info self;
  snprintf(name, sizeof name, major == 11 ? "libnvrtc.so.11.2" : "libnvrtc.so.%d", major);
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL || dladdr((void *)&nvrtc, &self) == 0) return library;
  const char *slash = strrchr(self.dli_fname, '/');
  int used = slash == NULL ? 0 : (int)(slash - self.dli_fname);
  used = snprintf(pattern, sizeof pattern, "%.*s/../../nvidia/*/lib/%s", used, self.dli_fname, name);
  return used < (int)sizeof pattern ? open_matching(pattern) : NULL;
}

/* One that this driver can load binaries of: not newer than it. */
static void *open_library(int most) {
  const char *said = getenv("EKIDEN_NVRTC");
  if (said != NULL && said[0] != '\0') return dlopen(said, RTLD_NOW | RTLD_LOCAL);
  for (int major = most; major >= OLDEST; major--) {
    void *library = open_version(major);
    if (library != NULL) return library;
  }
  return NULL;
}

/* Text that includes a header of CUDA's finds it beside the library. */
static void find_headers(void) {
  Dl_info about;
  char path[PATH];
  void *symbol;
  memcpy(&symbol, &nvrtc.nvrtcVersion, sizeof symbol);
  if (dladdr(symbol, &about) == 0) return;
  const char *slash = strrchr(about.dli_fname, '/');
  int used = slash == NULL ? 0 : (int)(slash - about.dli_fname);
  used = snprintf(path, sizeof path, "%.*s/../include", used, about.dli_fname);
  if (used > 0 && used < PATH) snprintf(headers, sizeof headers, "--include-path=%s", path);
}

/* Under the lock. */
static int find_nvrtc(const ek_driver_host *host, const char *doing, int most) {
  static const char *const names[] = {NVRTC_FUNCTIONS(DRIVER_NAME)};
  int major = 0, minor = 0;
  void *library = open_library(most);
  const char *said = getenv("EKIDEN_NVRTC");
  if (library == NULL && said != NULL && said[0] != '\0') {
    return host->error("DeviceError", "%s: EKIDEN_NVRTC names no NVRTC: %s", doing, dlerror());
  }
  if (library == NULL) {
    return host->error("DeviceError", "%s: needs NVRTC, CUDA's compiler, of version %d or older: pip "
                       "install nvidia-cuda-nvrtc%s (or name libnvrtc.so in EKIDEN_NVRTC)", doing,
                       most, most >= 13 ? "" : most == 12 ? "-cu12" : "-cu11");
  }
  const char *missing = driver_find(library, names, sizeof names / sizeof names[0], &nvrtc);
  if (missing != NULL || nvrtc.nvrtcVersion(&major, &minor) != 0) {
    return host->error("DeviceError", "%s: this NVRTC has no '%s'; install one of CUDA 11.2 or later",
                       doing, missing == NULL ? "version" : missing);
  }
  find_headers();
  version = 100 * major + minor;
  return 0;
}

/* Building ------------------------------------------------------------------------------------- */

/* The newest architecture that it knows and a GPU can run; 0 where there is none. */
static int architecture_for(int device_arch) {
  int n = 0, known[MAX_KINDS], best = 0;
  if (nvrtc.nvrtcGetNumSupportedArchs(&n) != 0 || n > MAX_KINDS) return 0;
  if (nvrtc.nvrtcGetSupportedArchs(known) != 0) return 0;
  for (int i = 0; i < n; i++) {
    if (known[i] <= device_arch && known[i] > best) best = known[i];
  }
  return best;
}

typedef struct build {
  const ek_driver_host *host;
  char doing[192];                         /* "cuda(0): kernel 'f'" */
  const char *options[MAX_OPTIONS];
  char architecture[48];
  bool is_binary;
} build;

static const char standard[] = "--std=c++17";
static const char unfused[] = "--fmad=false"; /* programs say where products and sums are fused */

static void choose_options(build *b, int known, int wanted) {
  b->is_binary = known == wanted;
  snprintf(b->architecture, sizeof b->architecture, "--gpu-architecture=%s_%d",
           b->is_binary ? "sm" : "compute", known);
  b->options[0] = b->architecture;
  b->options[1] = standard;
  b->options[2] = unfused;
  b->options[3] = headers;
}

static int n_options(void) { return headers[0] == '\0' ? 3 : 4; }

/* Returns the compiler's log, in memory from malloc; NULL if it is not available. */
static char *log_of(nvrtcProgram program) {
  size_t size = 0;
  if (nvrtc.nvrtcGetProgramLogSize(program, &size) != 0) return NULL;
  char *log = calloc(1, size + 1);
  if (log != NULL && nvrtc.nvrtcGetProgramLog(program, log) == 0) return log;
  free(log);
  return NULL;
}

static void refuse(const build *b, nvrtcProgram program, nvrtcResult status, const char *text,
                   size_t size) {
  char place[256];
  char *log = log_of(program);
  log_place(log == NULL ? "" : log, text, size, place, sizeof place);
  b->host->error("DeviceError", "%s: %sNVRTC %d.%d refuses it (%s): %.1500s", b->doing, place,
                 version / 100, version % 100, nvrtc.nvrtcGetErrorString(status),
                 log == NULL ? "" : log);
  free(log);
}

static char *binary_of(const build *b, nvrtcProgram program, size_t *size) {
  nvrtcResult status = b->is_binary ? nvrtc.nvrtcGetCUBINSize(program, size)
                                    : nvrtc.nvrtcGetPTXSize(program, size);
  char *text = status == 0 ? calloc(1, *size + 1) : NULL;
  if (text != NULL) {
    status = b->is_binary ? nvrtc.nvrtcGetCUBIN(program, text) : nvrtc.nvrtcGetPTX(program, text);
  }
  if (status == 0 && text != NULL) return text;
  free(text);
  if (status == 0) b->host->error("MemoryError", "%s: no memory for its binary", b->doing);
  else b->host->error("DeviceError", "%s: NVRTC gives no binary (%s)", b->doing,
                      nvrtc.nvrtcGetErrorString(status));
  return NULL;
}

/* 'text' ends with a zero. */
static char *compiled(const build *b, const char *name, const char *text, size_t size, size_t *result) {
  char file[128];
  nvrtcProgram program = NULL;
  snprintf(file, sizeof file, "%s.cu", name);
  nvrtcResult status = nvrtc.nvrtcCreateProgram(&program, text, file, 0, NULL, NULL);
  if (status != 0) {
    b->host->error("DeviceError", "%s: NVRTC takes no program (%s)", b->doing,
                   nvrtc.nvrtcGetErrorString(status));
    return NULL;
  }
  status = nvrtc.nvrtcCompileProgram(program, n_options(), b->options);
  char *binary = NULL;
  if (status == 0) binary = binary_of(b, program, result);
  else refuse(b, program, status, text, size);
  nvrtc.nvrtcDestroyProgram(&program);
  return binary;
}

/* Returns the cached code with a zero byte behind it. */
static char *read_cached(const char *key, size_t *size) {
  char *found = (char *)cache_read(key, size);
  char *longer = found == NULL ? NULL : realloc(found, *size + 1);
  if (longer == NULL) free(found);
  else longer[*size] = '\0';
  return longer;
}

char *cuda_build(const ek_driver_host *host, ek_device device, cuda_kind kind, const char *name,
                 const void *code, size_t size, size_t *result) {
  build b = {.host = host};
  char names[3][256], key[CACHE_KEY];
  snprintf(b.doing, sizeof b.doing, "cuda(%d): kernel '%s'", device.id, name);
  pthread_mutex_lock(&lock);
  int status = version != 0 ? 0 : find_nvrtc(host, b.doing, kind.version / 1000);
  pthread_mutex_unlock(&lock);
  if (status != 0) return NULL;
  int known = architecture_for(kind.architecture);
  if (known == 0) {
    host->error("DeviceError", "%s: NVRTC %d.%d makes no code for GPUs of compute capability %d.%d; "
                "install an older one", b.doing, version / 100, version % 100,
                kind.architecture / 10, kind.architecture % 10);
    return NULL;
  }
  choose_options(&b, known, kind.architecture);
  snprintf(names[0], sizeof names[0], "NVRTC %d", version);
  snprintf(names[1], sizeof names[1], "%s", b.architecture);
  snprintf(names[2], sizeof names[2], "%s", standard);
  cache_key(code, size, names, 3, unfused, key, sizeof key);
  char *binary = read_cached(key, result);
  if (binary != NULL) return binary;
  char *text = calloc(1, size + 1);
  if (text == NULL) {
    host->error("MemoryError", "%s: no memory for its text", b.doing);
    return NULL;
  }
  memcpy(text, code, size);
  binary = compiled(&b, name, text, size, result);
  free(text);
  if (binary != NULL) cache_write(key, binary, *result);
  return binary;
}
