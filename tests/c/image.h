/* A small native code image, made by hand: what the loader's tests load, and damage. */
#ifndef IMAGE_H_
#define IMAGE_H_

#include "check.h"

enum { TEXT_SIZE = 96, TABLES = 4096 + TEXT_SIZE, IMAGE_MAX = 4608 };

typedef struct image_bytes {
  unsigned char bytes[IMAGE_MAX];
  size_t size;
} image_bytes;

static inline void put(image_bytes *image, uint64_t value, int size) {
  for (int i = 0; i < size; i++) image->bytes[image->size++] = (unsigned char)(value >> (8 * i));
}

static inline void put_name(image_bytes *image, const char *name) {
  put(image, strlen(name), 4);
  memcpy(image->bytes + image->size, name, strlen(name));
  image->size += strlen(name);
}

static inline void put_at(image_bytes *image, size_t at, uint64_t value, int size) {
  size_t end = image->size;
  image->size = at;
  put(image, value, size);
  image->size = end;
}

/* x86-64. "answer" returns 42. "fail" jumps through slot 1 of the table, which lies 4096 bytes
** after the text, to ek_kernel_error("ValueError", "no such index"). */
static const unsigned char text[TEXT_SIZE] = {
    [0] = 0xc7, 0x01, 1, 0, 0, 0,                /* mov dword [rcx], 1 */
    0x48, 0xc7, 0x41, 8, 42, 0, 0, 0,            /* mov qword [rcx+8], 42 */
    0x31, 0xc0, 0xc3,                            /* xor eax, eax; ret */
    [32] = 0x48, 0x8d, 0x3d, 25, 0, 0, 0,        /* lea rdi, [rip+25] */
    0x48, 0x8d, 0x35, 34, 0, 0, 0,               /* lea rsi, [rip+34] */
    0xff, 0x25, 0xd4, 0x0f, 0, 0,                /* jmp [rip+4052] */
    [64] = 'V', 'a', 'l', 'u', 'e', 'E', 'r', 'r', 'o', 'r', 0,
    [80] = 'n', 'o', ' ', 's', 'u', 'c', 'h', ' ', 'i', 'n', 'd', 'e', 'x', 0, 0x90, 0x90,
};

static inline image_bytes make_image(void) {
  image_bytes image = {{'E', 'K', 'I', 'M', 'G', 0, 0, 1}, TABLES};
  memcpy(image.bytes + 4096, text, TEXT_SIZE);
  put_name(&image, "fail");
  put(&image, 32, 8);
  put_name(&image, "answer");
  put(&image, 0, 8);
  size_t imports = image.size;
  put_name(&image, "memcpy");
  put_name(&image, "ek_kernel_error");
  put_at(&image, 8, 2, 4);
  put_at(&image, 12, 2, 4);
  put_at(&image, 16, TEXT_SIZE, 8);
  put_at(&image, 24, TABLES, 8);
  put_at(&image, 32, imports, 8);
  put_at(&image, 40, image.size, 8);
  return image;
}

/* The same, for a processor with certain abilities. */
static inline image_bytes make_image_for(int architecture, const char *needs) {
  image_bytes image = make_image();
  image.bytes[6] = (unsigned char)architecture;
  memcpy(image.bytes + 48, needs, strlen(needs));
  return image;
}

#endif /* IMAGE_H_ */
