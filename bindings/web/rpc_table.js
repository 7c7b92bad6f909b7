// The messages of sessions, as docs/rpc.md has them.
//
// Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit.

export const MAGIC = 0x4350524b458901n;
export const VERSION = 1;
export const HEADER = 8;
export const HELLO_LIMIT = 65536;
export const FRAME_LIMIT = 4194304;
export const LEAST_LIMIT = 4096;
export const DEPTH_LIMIT = 16;
export const HANDLE_LIMIT = 1048576;

export const KINDS = {
  HELLO: 1,
  CALL: 2,
  FUNCTION: 3,
  LOAD: 4,
  ALLOC: 5,
  WRITE: 6,
  READ: 7,
  COPY: 8,
  TIME: 9,
  UPLOAD: 10,
  DOWNLOAD: 11,
  SIZE: 12,
  REMOVE: 13,
  LIST: 14,
  RELEASE: 15,
  IMPORT: 16,
  RETURN: 17,
  ERROR: 18,
  PUT: 19,
  REQUEST: 20,
  DROP: 21,
  SUMMARY: 22,
};

export const TAGS = {
  NONE: 0,
  INT: 1,
  BOOL: 2,
  FLOAT: 3,
  DTYPE: 5,
  DEVICE: 6,
  OBJECT: 64,
  STR: 65,
  BYTES: 66,
  FUNCTION: 68,
  SHAPE: 69,
  TENSOR: 70,
  ARRAY: 71,
  MAP: 72,
  MODULE: 73,
  YOURS: 74,
  ADT: 129,
};

/** By number: name, letters of the fields, fewest bytes of a body. */
export const MESSAGES = {
  1: {name: 'HELLO', fields: 'quuusV', least: 28},
  2: {name: 'CALL', fields: 'hV', least: 12},
  3: {name: 'FUNCTION', fields: 'hs', least: 12},
  4: {name: 'LOAD', fields: 's', least: 4},
  5: {name: 'ALLOC', fields: 't', least: 16},
  6: {name: 'WRITE', fields: 'hqb', least: 20},
  7: {name: 'READ', fields: 'hqu', least: 20},
  8: {name: 'COPY', fields: 'hh', least: 16},
  9: {name: 'TIME', fields: 'hsuuuuuuqsV', least: 52},
  10: {name: 'UPLOAD', fields: 'sqqb', least: 24},
  11: {name: 'DOWNLOAD', fields: 'squ', least: 16},
  12: {name: 'SIZE', fields: 's', least: 4},
  13: {name: 'REMOVE', fields: 's', least: 4},
  14: {name: 'LIST', fields: '', least: 0},
  15: {name: 'RELEASE', fields: 'H', least: 4},
  16: {name: 'IMPORT', fields: 'hh', least: 16},
  17: {name: 'RETURN', fields: 'v', least: 1},
  18: {name: 'ERROR', fields: 'sss', least: 12},
  19: {name: 'PUT', fields: 'ssus', least: 16},
  20: {name: 'REQUEST', fields: 'si', least: 12},
  21: {name: 'DROP', fields: 's', least: 4},
  22: {name: 'SUMMARY', fields: '', least: 0},
};
