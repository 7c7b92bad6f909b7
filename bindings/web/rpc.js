// Makes a page, a worker or Node a device of rpc.connect, over WebSocket and the proxy of `rpc.Proxy(web_port=)`.
// Messages are those of docs/rpc.md. Everything that comes is checked before anything is made of it.

import {EkidenError, Func, Module, Tensor, init, registry} from './index.js';
import {
  DEPTH_LIMIT, FRAME_LIMIT, HANDLE_LIMIT, HEADER, HELLO_LIMIT, KINDS, LEAST_LIMIT, MAGIC, MESSAGES, TAGS, VERSION,
} from './rpc_table.js';

const NAME_LIMIT = 255, MAX_RANK = 64, FILE_LIMIT = 2 ** 30, HOST = 1;
const CODES = {int: 0, uint: 1, float: 2, bfloat: 4, bool: 6};
const DTYPES = new Map([
  'float32', 'float64', 'int8', 'uint8', 'int16', 'uint16', 'int32', 'uint32', 'int64', 'uint64', 'float16', 'bfloat16',
].map((name) => {
  const [, word, bits] = /^([a-z]+)(\d+)$/.exec(name);
  return [`${CODES[word]} ${bits}`, name];
}).concat([[`${CODES.bool} 8`, 'bool']]));
const NUMBERS = new Map([...DTYPES].map(([numbers, name]) => [name, numbers.split(' ').map(Number)]));
const decoder = new TextDecoder('utf-8', {fatal: true});
const encoder = new TextEncoder();

class FrameError extends EkidenError {
  constructor(message) {
    super('FrameError', `rpc: ${message}`);
  }
}

function fail(kind, message) {
  throw new EkidenError(kind, message);
}

/** Returns the result of `find`, or undefined if it throws an error of a kind. */
function absent(kind, find) {
  try {
    return find();
  } catch (error) {
    if (error.kind === kind) return undefined;
    throw error;
  }
}

/** Makes the body of one message. */
class Writer {
  constructor(session) {
    this.session = session;
    this.bytes = new Uint8Array(256);
    this.view = new DataView(this.bytes.buffer);
    this.size = HEADER;
  }

  room(size) {
    const at = this.size;
    this.size += size;
    if (this.size > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.size, 2 * this.bytes.length));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    return at;
  }

  u8(value) {
    const at = this.room(1);
    this.view.setUint8(at, value);
  }

  u32(value) {
    const at = this.room(4);
    this.view.setUint32(at, value, true);
  }

  u64(value) {
    const at = this.room(8);
    this.view.setBigUint64(at, BigInt(value), true);
  }

  i64(value) {
    const at = this.room(8);
    this.view.setBigInt64(at, BigInt(value), true);
  }

  blob(bytes) {
    this.u32(bytes.length);
    const at = this.room(bytes.length);
    this.bytes.set(bytes, at);
  }

  text(value) {
    this.blob(encoder.encode(value));
  }

  tagged(tag, handle) {
    this.u8(tag);
    this.u64(handle);
  }

  list(items, depth) {
    this.u32(items.length);
    for (const item of items) this.value(item, depth);
  }

  tensor(tensor) {
    this.tagged(TAGS.TENSOR, this.session.hold(tensor));
    const [code, bits] = NUMBERS.get(tensor.dtype);
    const at = this.room(16);
    this.view.setInt32(at, HOST, true);
    this.view.setInt32(at + 4, 0, true);
    this.view.setUint8(at + 8, code);
    this.view.setUint8(at + 9, bits);
    this.view.setUint16(at + 10, 1, true);
    this.view.setUint32(at + 12, tensor.shape.length, true);
    for (const size of tensor.shape) this.i64(size);
  }

  value(item, depth = 0) {
    if (depth > DEPTH_LIMIT) fail('ValueError', `rpc: more than ${DEPTH_LIMIT} containers inside each other`);
    if (item === undefined || item === null) return this.u8(TAGS.NONE);
    if (typeof item === 'boolean') return this.u8(TAGS.BOOL), this.u8(item ? 1 : 0);
    if (typeof item === 'bigint' || Number.isSafeInteger(item)) return this.u8(TAGS.INT), this.i64(item);
    if (typeof item === 'number') {
      this.u8(TAGS.FLOAT);
      const at = this.room(8);
      return this.view.setFloat64(at, item, true);
    }
    if (typeof item === 'string') return this.u8(TAGS.STR), this.text(item);
    if (item instanceof Uint8Array) return this.u8(TAGS.BYTES), this.blob(item);
    if (item instanceof Tensor) return this.tensor(item);
    if (item instanceof Func) return this.tagged(TAGS.FUNCTION, this.session.hold(item));
    if (item instanceof Module) return this.tagged(TAGS.MODULE, this.session.hold(item));
    if (item instanceof Names) return this.u8(TAGS.ARRAY), this.list(item.names, depth + 1);
    if (!Array.isArray(item)) return fail('TypeError', `rpc: ${item.constructor?.name} cannot cross`);
    this.u8(TAGS.ADT); // the runtime's tuples
    this.u32(0);
    return this.list(item, depth + 1);
  }

  frame(kind) {
    this.view.setUint32(0, this.size - HEADER, true);
    this.view.setUint32(4, kind, true);
    return this.bytes.subarray(0, this.size);
  }
}

class Names {
  constructor(names) {
    this.names = names;
  }
}

/** Takes the body of one message apart. */
class Reader {
  constructor(bytes, session) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.session = session;
  }

  get left() {
    return this.bytes.length - this.at;
  }

  take(size) {
    if (size > this.left) throw new FrameError(`${size} bytes expected in a message, got ${this.left}`);
    this.at += size;
    return this.at - size;
  }

  u8() {
    return this.view.getUint8(this.take(1));
  }

  u32() {
    return this.view.getUint32(this.take(4), true);
  }

  u64() {
    return this.view.getBigUint64(this.take(8), true);
  }

  i64() {
    return this.view.getBigInt64(this.take(8), true);
  }

  count(least) {
    const count = this.u32();
    if (count * least > this.left) throw new FrameError(`${count} items announced in ${this.left} bytes`);
    return count;
  }

  blob() {
    const size = this.count(1);
    const at = this.take(size);
    return this.bytes.subarray(at, at + size);
  }

  text() {
    try {
      return decoder.decode(this.blob());
    } catch (error) {
      throw error instanceof FrameError ? error : new FrameError('text expected');
    }
  }

  several(least, read) {
    return Array.from({length: this.count(least)}, read);
  }

  /** Device, dtype and shape of a tensor. */
  type() {
    const at = this.take(16);
    const [device, number] = [this.view.getInt32(at, true), this.view.getInt32(at + 4, true)];
    const [code, bits] = [this.view.getUint8(at + 8), this.view.getUint8(at + 9)];
    const [lanes, rank] = [this.view.getUint16(at + 10, true), this.view.getUint32(at + 12, true)];
    if (rank > MAX_RANK) throw new FrameError(`a rank of ${MAX_RANK} at most expected, got ${rank}`);
    const shape = Array.from({length: rank}, () => Number(this.i64()));
    const dtype = lanes === 1 ? DTYPES.get(`${code} ${bits}`) : undefined;
    if (dtype === undefined) throw new FrameError(`a dtype expected, got code ${code}, ${bits} bits, ${lanes} lanes`);
    if (shape.some((size) => size < 0)) throw new FrameError(`sizes of a tensor expected, got ${shape}`);
    return {device, number, dtype, shape};
  }

  value(depth = 0) {
    if (depth > DEPTH_LIMIT) throw new FrameError(`more than ${DEPTH_LIMIT} containers inside each other`);
    const tag = this.u8();
    switch (tag) {
      case TAGS.NONE: return undefined;
      case TAGS.INT: return this.i64();
      case TAGS.BOOL: {
        const found = this.u8();
        if (found > 1) throw new FrameError(`0 or 1 expected, got ${found}`);
        return found === 1;
      }
      case TAGS.FLOAT: return this.view.getFloat64(this.take(8), true);
      case TAGS.STR: return this.text();
      case TAGS.YOURS: return this.session.held(this.u64());
      case TAGS.ARRAY: return this.several(1, () => this.value(depth + 1));
      case TAGS.ADT:
        this.take(4); // its tag, which is not told apart here
        return this.several(1, () => this.value(depth + 1));
      case TAGS.FUNCTION:
        this.u64();
        return new Refused('a function of the client cannot be called from a page: it cannot wait for it');
      default: throw new FrameError(`a kind of value that a page takes expected, got ${tag}`);
    }
  }

  field(letter) {
    return {
      u: () => this.u32(), q: () => this.u64(), i: () => this.i64(), h: () => this.u64(), s: () => this.text(),
      b: () => this.blob(), t: () => this.type(), v: () => this.value(), V: () => this.several(1, () => this.value()),
      H: () => this.several(8, () => this.u64()),
    }[letter]();
  }
}

/** What came and is refused where it is used, so that the rest of its message is read. */
class Refused {
  constructor(why) {
    this.why = why;
  }
}

/** The fields of a frame. */
function parse(data, limit, session) {
  const bytes = new Uint8Array(data);
  if (bytes.length < HEADER) throw new FrameError(`a message expected, got ${bytes.length} bytes`);
  const view = new DataView(data);
  const [size, kind] = [view.getUint32(0, true), view.getUint32(4, true)];
  const row = MESSAGES[kind];
  if (row === undefined) throw new FrameError(`a message expected, got ${kind}`);
  if (size < row.least || size > limit || size !== bytes.length - HEADER) {
    throw new FrameError(`${row.name} of ${size} bytes, of at most ${limit}`);
  }
  const reader = new Reader(bytes.subarray(HEADER), session);
  const fields = Array.from(row.fields, (letter) => reader.field(letter));
  if (reader.left) throw new FrameError(`${row.name} has ${reader.left} bytes too many`);
  return {kind, name: row.name, fields};
}

/** What one client has here: handles, files, and what serves each message. */
class Session {
  constructor() {
    this.things = new Map();
    this.next = 1n;
    this.files = new Map();
    this.limit = HELLO_LIMIT;
  }

  hold(thing) {
    if (this.things.size >= HANDLE_LIMIT) fail('RuntimeError', `rpc: more than ${HANDLE_LIMIT} things are held`);
    this.things.set(this.next, thing);
    return this.next++;
  }

  held(handle) {
    if (!this.things.has(handle)) throw new FrameError(`there is no handle ${handle}`);
    return this.things.get(handle);
  }

  thing(handle, cls) {
    const found = this.held(handle);
    if (found instanceof cls) return found;
    throw new FrameError(`handle ${handle} of a ${cls.name} expected, got a ${found.constructor.name}`);
  }

  file(name) {
    const found = this.files.get(this.plain(name));
    return found ?? fail('OSError', `session: there is no file '${name}'`);
  }

  plain(name) {
    const isPlain = !['', '.', '..'].includes(name) && !/[/\0]/.test(name);
    if (isPlain && encoder.encode(name).length <= NAME_LIMIT) return name;
    return fail('ValueError', `session: the name of a file without folders expected, got '${name}'`);
  }

  /** Returns a range of a tensor's bytes, after checking that it has that many from `offset` on. */
  elements(handle, offset, size) {
    const {data} = this.thing(handle, Tensor);
    const from = Number(offset);
    if (from + size > data.byteLength) {
      fail('ValueError', `tensor: bytes ${offset} to ${from + size} of ${data.byteLength}`);
    }
    return new Uint8Array(data.buffer, data.byteOffset + from, size);
  }

  usable(args) {
    for (const each of args) {
      if (each instanceof Refused) fail('TypeError', `rpc: ${each.why}`);
      if (Array.isArray(each)) this.usable(each);
    }
    return args;
  }

  entry(module, name) {
    const names = module.names();
    const chosen = name || (names.length === 1 ? names[0] : 'main');
    return absent('AttributeError', () => module.get(chosen));
  }

  CALL(handle, args) {
    return this.thing(handle, Func).callAsync(...this.usable(args));
  }

  FUNCTION(module, name) {
    if (module) return this.entry(this.thing(module, Module), name);
    return absent('KeyError', () => registry.get(name));
  }

  LOAD(name) {
    const {data, size} = this.file(name);
    return Module.load(data.slice(0, size), name);
  }

  ALLOC({device, number, dtype, shape}) {
    if (device !== HOST || number !== 0) fail('DeviceError', `rpc: there is no device ${device}, ${number} here`);
    return new Tensor(dtype, shape);
  }

  WRITE(handle, offset, data) {
    this.elements(handle, offset, data.length).set(data);
  }

  READ(handle, offset, size) {
    return this.elements(handle, offset, size);
  }

  COPY(source, target) {
    const [from, to] = [source, target].map((each) => this.thing(each, Tensor));
    const [had, wanted] = [from, to].map((each) => `${each.dtype} [${each.shape}]`);
    if (had !== wanted) fail('ValueError', `copy: ${wanted} expected, got ${had}`);
    to.data.set(from.data);
  }

  async TIME(handle, name, number, repeat, least, ...rest) {
    const [zero, cooldown, between, flush, prepare, args] = rest;
    if (number === 0 || repeat === 0) fail('ValueError', 'time: number and repeat of at least 1 expected');
    if (flush || prepare) fail('ValueError', 'time: a page cannot empty caches, and prepares nothing');
    const called = this.entry(this.thing(handle, Module), name);
    if (called === undefined) fail('AttributeError', `module: no function named '${name}'`);
    this.usable(args);
    await called.callAsync(...args);
    const found = new Float64Array(repeat);
    for (let at = 0; at < repeat; at++) {
      let [taken, runs, zeros] = [0, number, 0];
      for (;;) {
        const begun = performance.now();
        for (let i = 0; i < runs; i++) await called.callAsync(...args);
        taken = performance.now() - begun;
        zeros += taken === 0;
        if (taken >= least || (taken === 0 && zeros >= zero)) break;
        runs = Math.ceil(Math.max(1.6 * runs, Math.min(1e6, runs * least / Math.max(taken, 0.01))));
      }
      found[at] = taken / runs / 1000;
      if (cooldown && between && (at + 1) % between === 0) await new Promise((done) => setTimeout(done, cooldown));
    }
    return new Uint8Array(found.buffer);
  }

  /** The next piece of a file, which is among the others when all of it has come. */
  UPLOAD(name, offset, size, data) {
    const [at, all] = [Number(offset), Number(size)];
    if (all > FILE_LIMIT) {
      fail('ValueError', `upload '${this.plain(name)}': a file of at most ${FILE_LIMIT} bytes expected`);
    }
    if (at === 0) this.coming = {name: this.plain(name), all, data: new Uint8Array(0), size: 0};
    const {coming} = this, end = at + data.length;
    if (coming?.name !== name || coming.all !== all || coming.size !== at || end > all) {
      this.coming = null;
      fail('ValueError', `upload '${name}': the next piece of a file expected`);
    }
    if (end > coming.data.length) {
      const larger = new Uint8Array(Math.min(all, 2 * end));
      larger.set(coming.data.subarray(0, at));
      coming.data = larger;
    }
    coming.data.set(data, at);
    coming.size = end;
    if (end < all) return;
    this.files.set(name, coming);
    this.coming = null;
  }

  DOWNLOAD(name, offset, size) {
    const found = this.file(name);
    const at = Math.min(Number(offset), found.size);
    return found.data.subarray(at, Math.min(at + Math.min(size, this.limit - 64), found.size));
  }

  SIZE(name) {
    return this.file(name).size;
  }

  REMOVE(name) {
    this.file(name);
    this.files.delete(name);
  }

  LIST() {
    return new Names([...this.files.keys()].sort());
  }

  RELEASE(handles) {
    for (const handle of handles) {
      this.held(handle).close?.();
      this.things.delete(handle);
    }
  }

  IMPORT() {
    fail('RuntimeError', 'import_module: modules of a page import none');
  }

  end() {
    for (const each of this.things.values()) each.close?.();
    this.things.clear();
  }
}

function frame(session, name, write) {
  const writer = new Writer(session);
  write(writer);
  const made = writer.frame(KINDS[name]);
  if (made.length - HEADER > session.limit) {
    fail('RuntimeError', `rpc: ${name} of ${made.length - HEADER} bytes, of at most ${session.limit}`);
  }
  return made;
}

function hello(session, key, limit) {
  return frame(session, 'HELLO', (to) => {
    to.u64(MAGIC);
    [VERSION, limit, 0].forEach((each) => to.u32(each));
    to.text(key);
    to.u32(0);
  });
}

function failure(session, error) {
  return frame(session, 'ERROR', (to) => {
    const short = (text) => String(text ?? '').slice(0, session.limit >> 4);
    [error.kind ?? 'RuntimeError', error.message, error.trace].forEach((each) => to.text(short(each)));
  });
}

/** Answers a frame; undefined where nothing is answered. */
async function answer(session, data, key) {
  const isNew = !session.isOpen;
  const {name, fields, kind} = parse(data, isNew ? HELLO_LIMIT : FRAME_LIMIT, session);
  if (isNew) {
    const [magic, version, limit, , wanted, constructor] = fields;
    if (name !== 'HELLO' || magic !== MAGIC || version !== VERSION || limit < LEAST_LIMIT) {
      throw new FrameError(`HELLO of version ${VERSION} expected`);
    }
    if (![key, `client:${key}`].includes(wanted)) {
      throw new FrameError(`the key '${wanted}' is not that of this server`);
    }
    if (constructor.length) throw new FrameError('a page makes no sessions with others');
    session.limit = limit;
    session.isOpen = true;
    return hello(session, key, FRAME_LIMIT);
  }
  if (kind < KINDS.CALL || kind > KINDS.IMPORT) throw new FrameError(`${name} is none of a session`);
  try {
    const found = await session[name](...fields);
    return name === 'RELEASE' ? undefined : frame(session, 'RETURN', (to) => to.value(found));
  } catch (error) {
    if (error instanceof FrameError) throw error;
    return failure(session, error);
  }
}

/** Serves one session; resolves to whether it was ever open. */
function serveOne(url, key, keep) {
  return new Promise((resolve) => {
    const socket = new WebSocket(url);
    const session = new Session();
    let last = Promise.resolve();
    let isOpen = false;
    keep(socket);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => {
      isOpen = true;
      socket.send(hello(session, `server:${key}`, HELLO_LIMIT));
    };
    socket.onmessage = ({data}) => {
      last = last.then(async () => {
        if (socket.readyState !== WebSocket.OPEN) return;
        try {
          if (typeof data === 'string') throw new FrameError('a message of bytes expected, got text');
          const said = await answer(session, data, key);
          if (said !== undefined) socket.send(said);
        } catch (error) {
          socket.send(failure(session, error));
          socket.close();
        }
      });
    };
    socket.onclose = () => last.then(() => {
      session.end();
      resolve(isOpen);
    });
  });
}

/** Waits at the proxy for clients, one after the other, until `close`; `done` rejects where the proxy is not there. */
export async function serve(url, {key = 'browser', ...options} = {}) {
  if (typeof WebSocket === 'undefined') {
    fail('RuntimeError', 'rpc: there is no WebSocket here; node --experimental-websocket');
  }
  await init(options);
  let isClosed = false;
  let socket;
  const done = (async () => {
    while (!isClosed) {
      const wasOpen = await serveOne(url, key, (made) => {
        socket = made;
      });
      if (!wasOpen && !isClosed) fail('OSError', `rpc: no proxy for browsers at ${url}`);
    }
  })();
  return {
    done,
    close() {
      isClosed = true;
      socket?.close();
    },
  };
}
