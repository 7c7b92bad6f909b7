/* libnvrtc without CUDA: CUDA C compiled by the system's C++ compiler with fibre.h before it, which
** FIBRE_HEADER names when this file is compiled. Its binaries are what cuda_stand_in.c loads: "FIBRES",
** a size, a library with a function for each kernel that calls it with an array of arguments. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

#define STAND_IN __attribute__((visibility("default")))

enum { HEAD = 16 };
struct cuda_program { char *text, *log, *binary, name[200]; size_t size; };

STAND_IN nvrtcResult nvrtcVersion(int *major, int *minor) {
  *major = 13, *minor = 0;
  return 0;
}

STAND_IN const char *nvrtcGetErrorString(nvrtcResult code) {
  return code == 6 ? "NVRTC_ERROR_COMPILATION" : code == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_INVALID_INPUT";
}

STAND_IN nvrtcResult nvrtcGetNumSupportedArchs(int *out) {
  *out = 2;
  return 0;
}

STAND_IN nvrtcResult nvrtcGetSupportedArchs(int *out) {
  out[0] = 80, out[1] = 90;
  return 0;
}

STAND_IN nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *name, int n,
                                        const char *const *headers, const char *const *names) {
  (void)headers, (void)names;
  if (n != 0) return 3;
  *out = calloc(1, sizeof **out);
  (*out)->text = strdup(text);
  snprintf((*out)->name, sizeof (*out)->name, "%s", name);
  return 0;
}

STAND_IN nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
  free((*program)->text);
  free((*program)->log);
  free((*program)->binary);
  free(*program);
  *program = NULL;
  return 0;
}

/* A function and a number of arguments for each kernel of the text. */
static void write_calls(FILE *file, const char *text) {
  static const char mark[] = "__global__ void ";
  for (const char *at = strstr(text, mark); at != NULL; at = strstr(at, mark)) {
    at += strlen(mark);
    int size = (int)strcspn(at, "( "), n = 1;
    const char *name = at;
    for (at = strchr(at, '('); *at != ')'; at++) n += *at == ',';
    fprintf(file, "extern \"C\" { extern const int fibre_args_%.*s; const int fibre_args_%.*s = %d; }\n", size,
            name, size, name, n);
    fprintf(file, "extern \"C\" void fibre_call_%.*s(void **args) {\n  %.*s(", size, name, size, name);
    for (int i = 0; i < n; i++) fprintf(file, "%sfibre_any{args[%d]}", i ? ", " : "", i);
    fprintf(file, ");\n}\n");
  }
}

static char *read_file(const char *folder, const char *name, size_t head, size_t *size) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file) + head;
  rewind(file);
  char *data = calloc(1, *size + 1);
  bool is_read = fread(data + head, 1, *size - head, file) == *size - head;
  fclose(file);
  unlink(path);
  if (is_read) return data;
  free(data);
  return NULL;
}

STAND_IN nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n, const char *const *options) {
  char folder[] = "/tmp/nvrtc-stand-in-XXXXXX", path[256], command[1024];
  size_t log_size;
  for (int i = 0; i < n; i++) {
    if (strncmp(options[i], "--", 2) != 0) return 5;
  }
  if (mkdtemp(folder) == NULL) return 1;
  snprintf(path, sizeof path, "%s/k.cpp", folder);
  FILE *file = fopen(path, "w");
  fprintf(file, "#include \"%s\"\n#line 1 \"%s\"\n%s\n", FIBRE_HEADER, program->name, program->text);
  write_calls(file, program->text);
  fclose(file);
  snprintf(command, sizeof command, "c++ -std=c++17 -O1 -w -fwrapv -ffp-contract=off -shared -fPIC "
           "-o %s/k.so %s 2> %s/log", folder, path, folder);
  bool is_right = system(command) == 0;
  program->log = read_file(folder, "log", 0, &log_size);
  program->binary = is_right ? read_file(folder, "k.so", HEAD, &program->size) : NULL;
  unlink(path);
  rmdir(folder);
  if (program->binary == NULL) return 6;
  uint64_t inside = program->size - HEAD;
  memcpy(program->binary, "FIBRES\0", 8);
  memcpy(program->binary + 8, &inside, sizeof inside);
  return 0;
}

STAND_IN nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *out) {
  *out = strlen(program->log == NULL ? "" : program->log) + 1;
  return 0;
}

STAND_IN nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *out) {
  strcpy(out, program->log == NULL ? "" : program->log);
  return 0;
}

STAND_IN nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *out) {
  *out = program->size;
  return 0;
}

STAND_IN nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *out) {
  memcpy(out, program->binary, program->size);
  return 0;
}

STAND_IN nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *out) {
  return nvrtcGetCUBINSize(program, out);
}

STAND_IN nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *out) { return nvrtcGetCUBIN(program, out); }
