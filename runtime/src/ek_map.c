/* Maps: pairs in the order of their insertion, and a table of places behind them.
**
** The pairs lie inside the object. Maps of more than a few have an open table of int32, twice as
** large as the number of pairs, with the number of a pair plus one at a place its key hashes to. */
#include "ek_internal.h"

enum { SCANNED = 8 };          /* maps up to this size are searched from first to last */

typedef struct own_map {
  ek_map map;
  uint32_t *table;             /* behind the pairs; NULL in small maps */
  uint64_t mask;               /* of places in the table */
} own_map;

/* Keys ----------------------------------------------------------------------------------------- */

/* The size is the seed, so that a text and the same with zeros behind it differ. Not for
** adversaries: who chooses keys can make them collide. */
uint64_t ek_hash_bytes(const void *data, size_t size) {
  const unsigned char *at = data;
  uint64_t hash = size, word = 0;
  for (; size >= sizeof word; size -= sizeof word, at += sizeof word) {
    memcpy(&word, at, sizeof word);
    hash = ek_hash_mix(hash, word);
  }
  word = 0;
  if (size != 0) memcpy(&word, at, size);
  return ek_hash_mix(hash, word);
}

uint64_t ek_key_hash(const ek_value *key) {
  ek_bytes bytes;
  if (ek_string_borrow(key, &bytes)) return ek_hash_bytes(bytes.data, bytes.size);
  return ek_hash_mix((uint64_t)key->type_index, (uint64_t)key->v.i64);
}

static bool is_bytes(const ek_value *value) {
  int32_t type = value->type_index;
  return type == EK_BYTES || type == EK_SMALL_BYTES || type == EK_BYTE_ARRAY_PTR;
}

bool ek_key_equal(const ek_value *a, const ek_value *b) {
  ek_bytes x, y;
  bool text = ek_string_borrow(a, &x);
  if (text != (ek_string_borrow(b, &y) != 0)) return false;
  if (!text) return a->type_index == b->type_index && a->v.i64 == b->v.i64;
  if (is_bytes(a) != is_bytes(b) || x.size != y.size) return false;
  return x.size == 0 || memcmp(x.data, y.data, x.size) == 0;
}

/* Searching ------------------------------------------------------------------------------------ */

/* The place of a key in the table: that of its pair, or the free one where it would go. Linear
** probing. The table is at most half full, so there is a free place, and it is near. */
static uint64_t place(const own_map *self, const ek_value *key) {
  uint64_t at = ek_key_hash(key) & self->mask;
  while (self->table[at] != 0 &&
         !ek_key_equal(&self->map.data[2 * (self->table[at] - 1)], key)) {
    at = (at + 1) & self->mask;
  }
  return at;
}

/* The value of a key, or NULL. */
static ek_value *scan(const ek_map *map, const ek_value *key) {
  for (uint64_t i = 0; i < map->size; i++) {
    if (ek_key_equal(&map->data[2 * i], key)) return &map->data[2 * i + 1];
  }
  return NULL;
}

static ek_value *lookup(const own_map *self, const ek_value *key) {
  if (self->table == NULL) return scan(&self->map, key);
  uint32_t pair = self->table[place(self, key)];
  return pair == 0 ? NULL : &self->map.data[2 * (pair - 1) + 1];
}

/* Life ----------------------------------------------------------------------------------------- */

static void drop(void *self, int flags) {
  own_map *map = self;
  if (flags & EK_DELETE_CONTENT) ek_values_release(map->map.data, 2 * (int64_t)map->map.size);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void map_deleter(void *self, int flags) { ek_delete_flat(self, flags, drop); }

/* The later value of a key counts, at the place of the first, as in Python. */
static int insert(own_map *self, const ek_value *pair) {
  ek_map *map = &self->map;
  ek_value *known = lookup(self, pair), value;
  if (ek_value_own("make map", &pair[1], &value) != 0) return -1;
  if (known != NULL) {
    ek_value_release(known);
    *known = value;
    return 0;
  }
  ek_value *to = &map->data[2 * map->size];
  if (ek_value_own("make map", &pair[0], &to[0]) != 0) {
    ek_value_release(&value);
    return -1;
  }
  to[1] = value;
  map->size++;
  if (self->table != NULL) self->table[place(self, &to[0])] = (uint32_t)map->size;
  return 0;
}

/* Room for 'pairs' pairs, none in it. */
static own_map *map_alloc(uint64_t pairs) {
  uint64_t places = 0;
  if (pairs > SCANNED) {
    for (places = 16; places < 2 * pairs;) places *= 2;
  }
  size_t size = sizeof(own_map) + (size_t)pairs * 2 * sizeof(ek_value);
  own_map *self = ek_object_alloc(size + (size_t)places * sizeof(uint32_t), EK_MAP, map_deleter);
  if (self == NULL) return NULL;
  self->map.data = (ek_value *)(void *)(self + 1);
  self->map.slots = EK_MAP_IN_ORDER | pairs;
  self->mask = places - 1;
  if (places != 0) self->table = (uint32_t *)(void *)((char *)self + size);
  return self;
}

int ek_map_new(const ek_value *items, int64_t n, ek_object **out) {
  if (n < 0 || n % 2 != 0 || n > INT32_MAX) {
    return ek_error("ValueError", "make map: keys and values alternately expected, got %lld items",
                    (long long)n);
  }
  own_map *self = map_alloc((uint64_t)n / 2);
  if (self == NULL) return -1;
  for (int64_t i = 0; i < n; i += 2) {
    if (insert(self, &items[i]) == 0) continue;
    ek_release(&self->map.base);
    return -1;
  }
  *out = &self->map.base;
  return 0;
}

int ek_map_get(const ek_object *object, const ek_value *key, ek_value *out) {
  const ek_map *map = (const ek_map *)(const void *)object;
  if (!ek_is(object, EK_MAP)) return ek_error("TypeError", "get from map: a map expected");
  if ((map->slots & EK_MAP_IN_ORDER) == 0) {
    return ek_error("TypeError", "get from map: a map made by Ekiden expected, got one of another "
                    "runtime");
  }
  bool is_own = object->deleter == map_deleter;
  const ek_value *value = is_own ? lookup((const own_map *)(const void *)map, key) : scan(map, key);
  if (value != NULL) *out = *value;
  return value != NULL;
}
