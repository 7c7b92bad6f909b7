/* Checks of a native code image before it is loaded. */
#ifndef EK_IMAGE_H_
#define EK_IMAGE_H_

#include "ek_internal.h"

enum { EK_IMAGE_LACKS = 256 }; /* bytes for the longest text of ek_image_lacks that is useful */

/* Whether this machine lacks what the code of an image of 'size' bytes needs. Then its names, and
** in brackets the processor that the code is for, are added to the text in 'out', as far as they
** fit. False for bytes that are no image: to be told by ek_image_load. */
bool ek_image_lacks(const unsigned char *bytes, size_t size, char *out, size_t capacity);

/* Loads an image, or holds one that this machine lacks something for, verified but for its imports:
** its functions are there by name, and calling one is a LoadError. 0 or -1. */
int ek_image_hold(const void *bytes, size_t size, ek_object **out);

#endif /* EK_IMAGE_H_ */
