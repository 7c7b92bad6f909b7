/* The messages of sessions, as docs/rpc.md has them.
**
** Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_TABLE_H_
#define EK_RPC_TABLE_H_

#define RPC_MAGIC UINT64_C(0x4350524b458901)
#define RPC_PART ".upload"
enum { RPC_VERSION = 1, RPC_HELLO_LIMIT = 65536, RPC_LEAST_LIMIT = 4096, RPC_DEPTH_LIMIT = 16, RPC_CALL_DEPTH = 32 };

enum rpc_kind {
  RPC_HELLO = 1,
  RPC_CALL = 2,
  RPC_FUNCTION = 3,
  RPC_LOAD = 4,
  RPC_ALLOC = 5,
  RPC_WRITE = 6,
  RPC_READ = 7,
  RPC_COPY = 8,
  RPC_TIME = 9,
  RPC_UPLOAD = 10,
  RPC_DOWNLOAD = 11,
  RPC_SIZE = 12,
  RPC_REMOVE = 13,
  RPC_LIST = 14,
  RPC_RELEASE = 15,
  RPC_IMPORT = 16,
  RPC_RETURN = 17,
  RPC_ERROR = 18,
  RPC_PUT = 19,
  RPC_REQUEST = 20,
  RPC_DROP = 21,
  RPC_SUMMARY = 22,
};

enum rpc_tag {
  RPC_TAG_NONE = 0,
  RPC_TAG_INT = 1,
  RPC_TAG_BOOL = 2,
  RPC_TAG_FLOAT = 3,
  RPC_TAG_DTYPE = 5,
  RPC_TAG_DEVICE = 6,
  RPC_TAG_OBJECT = 64,
  RPC_TAG_STR = 65,
  RPC_TAG_BYTES = 66,
  RPC_TAG_FUNCTION = 68,
  RPC_TAG_SHAPE = 69,
  RPC_TAG_TENSOR = 70,
  RPC_TAG_ARRAY = 71,
  RPC_TAG_MAP = 72,
  RPC_TAG_MODULE = 73,
  RPC_TAG_YOURS = 74,
  RPC_TAG_ADT = 129,
};

/* Name, number, letters of the fields, fewest bytes of a body. */
#define RPC_MESSAGES(ROW) \
  ROW(HELLO, 1, "quuusV", 28) \
  ROW(CALL, 2, "hV", 12) \
  ROW(FUNCTION, 3, "hs", 12) \
  ROW(LOAD, 4, "s", 4) \
  ROW(ALLOC, 5, "t", 16) \
  ROW(WRITE, 6, "hqb", 20) \
  ROW(READ, 7, "hqu", 20) \
  ROW(COPY, 8, "hh", 16) \
  ROW(TIME, 9, "hsuuuuuuqsV", 52) \
  ROW(UPLOAD, 10, "sqqb", 24) \
  ROW(DOWNLOAD, 11, "squ", 16) \
  ROW(SIZE, 12, "s", 4) \
  ROW(REMOVE, 13, "s", 4) \
  ROW(LIST, 14, "", 0) \
  ROW(RELEASE, 15, "H", 4) \
  ROW(IMPORT, 16, "hh", 16) \
  ROW(RETURN, 17, "v", 1) \
  ROW(ERROR, 18, "sss", 12) \
  ROW(PUT, 19, "ssus", 16) \
  ROW(REQUEST, 20, "si", 12) \
  ROW(DROP, 21, "s", 4) \
  ROW(SUMMARY, 22, "", 0)

#endif /* EK_RPC_TABLE_H_ */
