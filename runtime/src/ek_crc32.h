/* The CRC-32 of zlib and PNG (polynomial 0xedb88320), fast where the processor helps. */
#ifndef EK_CRC32_H_
#define EK_CRC32_H_

#include <stddef.h>
#include <stdint.h>

uint32_t ek_crc32(const void *data, size_t size);

/* Return the checksum of bytes that follow others, whose checksum is 'before'. */
uint32_t ek_crc32_next(uint32_t before, const void *data, size_t size);

#endif /* EK_CRC32_H_ */
