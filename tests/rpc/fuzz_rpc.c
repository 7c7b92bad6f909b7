/* Sessions of damaged messages against the server, in one process: fuzz_rpc SAMPLES FRAMES SEED
**
** SAMPLES has whole frames one after the other, the first of them HELLO. Prints how many sessions
** ended with a FrameError, how many by themselves, and how many answers were sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ek_rpc.h"
#include "ekiden/runtime.h"

enum { MAX_SAMPLES = 256, PER_SESSION = 5 };

typedef struct memory {
  unsigned char *data;
  size_t at, size;
  long answers;
} memory;

static int take(void *self, void *data, size_t size) {
  memory *stream = self;
  if (size > stream->size - stream->at) return -1;
  memcpy(data, stream->data + stream->at, size);
  stream->at += size;
  return 0;
}

static int give(void *self, const void *data, size_t size) {
  unsigned char head[8];
  if (size < sizeof head) abort();
  memcpy(head, data, sizeof head);
  ((memory *)self)->answers++;
  return 0;
}

static unsigned long long state;

static unsigned pick(unsigned below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned)(state >> 20) % below;
}

/* Damages a frame of 'size' bytes, with room for 32 more: its new size. */
static size_t damage(unsigned char *frame, size_t size) {
  static const unsigned numbers[] = {0, 1, 255, 256, 65535, 0x7fffffff, 0x80000000, 0xffffffff};
  for (unsigned times = pick(3) + 1; times > 0 && size > 0; times--) {
    size_t at = pick((unsigned)size), few = pick(8) + 1;
    switch (pick(5)) {
      case 0: frame[at] = (unsigned char)pick(256); break;
      case 1:
        memmove(frame + at + few, frame + at, size - at);
        for (size_t i = 0; i < few; i++) frame[at + i] = (unsigned char)pick(256);
        size += few;
        break;
      case 2:
        if (few > size - at) few = size - at;
        memmove(frame + at, frame + at + few, size - at - few);
        size -= few;
        break;
      case 3:
        if (at + 4 <= size) memcpy(frame + at, &numbers[pick(8)], 4);
        break;
      default: size = at;
    }
  }
  return size;
}

int main(int count, char **words) {
  static unsigned char samples[1 << 20], session[1 << 20];
  size_t starts[MAX_SAMPLES], sizes[MAX_SAMPLES], n = 0;
  char folder[] = "/tmp/ekiden-fuzz-XXXXXX";
  FILE *file = count == 4 ? fopen(words[1], "rb") : NULL;
  if (file == NULL || mkdtemp(folder) == NULL) return 2;
  size_t all = fread(samples, 1, sizeof samples, file);
  fclose(file);
  for (size_t at = 0; at < all; at += sizes[n++]) {
    unsigned size;
    memcpy(&size, samples + at, 4);
    starts[n] = at;
    sizes[n] = size + 8;
  }
  long frames = atol(words[2]), refused = 0, ended = 0, answers = 0;
  state = strtoull(words[3], NULL, 10) * 2654435769u + 88172645463325252u;
  for (long done = 0; done < frames; done += PER_SESSION) {
    memory stream = {session, 0, 0, 0};
    memcpy(session, samples + starts[0], sizes[0]);
    stream.size = done % 20 == 0 ? damage(session, sizes[0]) : sizes[0];
    for (int i = 0; i < PER_SESSION; i++) {
      size_t chosen = pick((unsigned)n);
      memcpy(session + stream.size, samples + starts[chosen], sizes[chosen]);
      size_t size = sizes[chosen], body = pick(2) * 8; /* half of the time the head stays whole */
      if (pick(3) > 0) size = body + damage(session + stream.size + body, size - body);
      if (body == 8 && size >= 8) {
        unsigned said = (unsigned)(size - 8);
        memcpy(session + stream.size, &said, 4);
      }
      stream.size += size;
    }
    ek_rpc_stream bytes = {&stream, take, give};
    ek_rpc_options options = {NULL, folder, 1 << 16, NULL, NULL};
    if (ek_rpc_serve(&bytes, &options) != 0) {
      ek_object_release(ek_error_take());
      refused++;
    } else {
      ended++;
    }
    answers += stream.answers;
  }
  char remove[64];
  snprintf(remove, sizeof remove, "rm -rf %s", folder);
  if (system(remove) != 0) return 2;
  printf("%ld %ld %ld\n", refused, ended, answers);
  return 0;
}
