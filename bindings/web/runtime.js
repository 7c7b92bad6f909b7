// The runtime in WebAssembly: what it asks of its host, values both ways, errors as classes.
//
// Pointers have 4 bytes there. The layouts are those of runtime.h, which asserts them for both widths.

/** The runtime's error: `kind` is its class there, such as "InputError"; `trace` what it knows of the
 * place in the program. */
export class EkidenError extends Error {
  constructor(kind, message, trace = '') {
    super(message);
    this.name = kind;
    this.kind = kind;
    this.trace = trace;
  }
}

const KINDS = [
  'InputError', 'LoadError', 'OSError', 'ValueError', 'TypeError', 'KeyError', 'IndexError',
  'AttributeError', 'MemoryError', 'MemoryLimitError', 'IndexRangeError', 'LinAlgError', 'BoundsError',
  'RunLimitError', 'RuntimeError', 'DeviceError', 'InternalError',
];

/** A class for each kind of error: `error instanceof errors.InputError`. */
export const errors = Object.fromEntries(KINDS.map((kind) => [kind, class extends EkidenError {
  constructor(message, trace) {
    super(kind, message, trace);
  }
}]));

export function errorOf(kind, message, trace = '') {
  const known = errors[kind];
  return known ? new known(message, trace) : new EkidenError(kind, message, trace);
}

// dtype -> [code, bits, typed array]
const DTYPES = {
  float32: [2, 32, Float32Array], float64: [2, 64, Float64Array], int8: [0, 8, Int8Array],
  uint8: [1, 8, Uint8Array], int16: [0, 16, Int16Array], uint16: [1, 16, Uint16Array],
  int32: [0, 32, Int32Array], uint32: [1, 32, Uint32Array], int64: [0, 64, BigInt64Array],
  uint64: [1, 64, BigUint64Array], bool: [6, 8, Uint8Array], float16: [2, 16, Uint16Array],
  bfloat16: [4, 16, Uint16Array],
};
const DTYPE_OF = new Map(Object.entries(DTYPES).map(([name, [code, bits]]) => [code << 8 | bits, name]));

/** Elements in row-major order, in the memory of JavaScript. */
export class Tensor {
  constructor(dtype, shape, data) {
    const row = DTYPES[dtype];
    if (!row) throw errorOf('TypeError', `no tensors of dtype '${dtype}'`);
    const kind = row[2];
    shape.forEach((extent, at) => {
      if (Number.isSafeInteger(extent) && extent >= 0) return;
      throw errorOf('ValueError', `tensor: dimension ${at} of its shape is no size: ${extent}`);
    });
    const size = shape.reduce((a, b) => a * b, 1);
    this.dtype = dtype;
    this.shape = [...shape];
    this.data = data === undefined ? new kind(size) : data instanceof kind ? data : kind.from(data);
    if (this.data.length !== size) {
      const got = this.data.length;
      const message = `tensor of shape [${shape}]: ${size} elements expected, got ${got}`;
      throw errorOf('ValueError', message);
    }
  }

  get device() {
    return {type: 1, id: 0};
  }
}

export const TYPES = {
  none: 0, int: 1, bool: 2, float: 3, dltensor: 7, rawString: 8, bytesPointer: 9, smallString: 11,
  smallBytes: 12, object: 64, string: 65, bytes: 66, function: 68, shape: 69, tensor: 70, array: 71,
  module: 73, adt: 129,
};
const VALUE = 16, PAYLOAD = 8, HEADER = 24;
const SIMD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15,
  253, 98, 11,
];
const RELAXED = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15,
  65, 2, 253, 15, 253, 128, 2, 11,
];
const IMPORT = 2, DATA = 11, MEMORY = 2; // sections of a module, a kind of import
/** Memory that threads share says how much it may have: 4 GB. runtime/web links with the same. */
const FIRST_PAGES = 512, MOST_PAGES = 65535, STACK = 1 << 20;
const IMAGE_SECTION = 5, PAGE = 4096, STANDARD_IMPORTS = 5;
const DEVICE_SECTION = 10, FIRST_KERNEL = 12, CPU = 1, WEBGPU = 15;
/** Whether WebAssembly can wait for a promise (JSPI). */
const CAN_SUSPEND = typeof WebAssembly.Suspending === 'function';

/** What the engine takes, as the runtime numbers it: vectors 1, relaxed ones 2. */
export function features() {
  return [SIMD, RELAXED].reduce(
    (found, probe, bit) => found | Number(WebAssembly.validate(new Uint8Array(probe))) << bit, 0);
}

/** How many places of the table a module of kernels takes: "dylink.0" says so. */
function placesOf(module) {
  const [part] = WebAssembly.Module.customSections(module, 'dylink.0');
  const bytes = new Uint8Array(part);
  const numbers = [];
  for (let at = 1; at < bytes.length;) {
    const [value, behind] = leb(bytes, at);
    numbers.push(value);
    at = behind;
  }
  return numbers[3]; // behind the row's size, the memory and its alignment
}

/** The sections of an artifact of one kind. */
function* sections(bytes, kind) {
  if (bytes.length < 32) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = view.getUint32(24, true);
  for (let at = 32; at + 24 <= bytes.length && at < 32 + 24 * count; at += 24) {
    const [offset, length] = [8, 16].map((by) => Number(view.getBigUint64(at + by, true)));
    if ((view.getUint32(at, true) & 0xffff) !== kind) continue;
    if (offset + length > bytes.length) return;
    yield new DataView(bytes.buffer, bytes.byteOffset + offset, length);
  }
}

/** The texts of the native code in an artifact. */
function* codeIn(bytes) {
  for (const part of sections(bytes, IMAGE_SECTION)) {
    if (part.byteLength < PAGE) continue;
    const size = Number(part.getBigUint64(16, true));
    if (size + PAGE <= part.byteLength) yield new Uint8Array(part.buffer, part.byteOffset + PAGE, size);
  }
}

/** Whether an artifact has kernels for WebGPU. */
export function needsWebGpu(bytes) {
  const [part] = sections(bytes, DEVICE_SECTION);
  return part !== undefined && part.byteLength >= FIRST_KERNEL + 4 && part.getUint32(FIRST_KERNEL, true) === WEBGPU;
}

/** A number of LEB128 at a place: what it is, and where it ends. */
function leb(bytes, at) {
  let value = 0;
  let shift = 0;
  for (; bytes[at] >= 0x80; at++, shift += 7) value |= (bytes[at] & 0x7f) << shift;
  return [(value | bytes[at] << shift) >>> 0, at + 1];
}

/** The same as bytes. */
function lebOf(value) {
  const bytes = [];
  for (; value >= 0x80; value >>>= 7) bytes.push(value & 0x7f | 0x80);
  return [...bytes, value];
}

/** The content of an import section whose memory is one that threads share. */
function sharedImports(bytes) {
  const made = [];
  let [count, at] = leb(bytes, 0);
  made.push(...bytes.subarray(0, at));
  for (; count > 0; count--) {
    const from = at;
    for (let name = 0; name < 2; name++) {
      const [size, behind] = leb(bytes, at);
      at = behind + size;
    }
    const kind = bytes[at++];
    if (kind === MEMORY) {
      made.push(...bytes.subarray(from, at));
      const hasMost = (bytes[at] & 1) !== 0;
      const [least, behind] = leb(bytes, at + 1);
      at = hasMost ? leb(bytes, behind)[1] : behind;
      made.push(3, ...lebOf(least), ...lebOf(MOST_PAGES));
      continue;
    }
    if (kind === 0) at = leb(bytes, at)[1]; // the type of a function
    else if (kind === 3) at += 2; // that of a global
    else { // the table: its elements, then how many
      const hasMost = (bytes[at + 1] & 1) !== 0;
      at = leb(bytes, at + 2)[1];
      if (hasMost) at = leb(bytes, at)[1];
    }
    made.push(...bytes.subarray(from, at));
  }
  return made;
}

/** A module of kernels over memory that threads share, which engines tell from other memory; for a
 * thread that follows another without its data, which are there already. */
function sharedModule(bytes, withData) {
  const parts = [bytes.slice(0, 8)];
  for (let at = 8; at < bytes.length;) {
    const number = bytes[at];
    const [size, from] = leb(bytes, at + 1);
    const content = bytes.slice(from, from + size);
    at = from + size;
    if (number === DATA && !withData) continue;
    const made = number === IMPORT ? sharedImports(content) : content;
    parts.push(new Uint8Array([number, ...lebOf(made.length)]), new Uint8Array(made));
  }
  const whole = new Uint8Array(parts.reduce((n, each) => n + each.length, 0));
  parts.reduce((at, each) => (whole.set(each, at), at + each.length), 0);
  return whole;
}

function same(a, b) {
  return a.length === b.length && a.every((each, at) => each === b[at]);
}

/** Whether a module of the runtime is that with threads: its memory is given to it. */
export function takesMemory(wasm) {
  return WebAssembly.Module.imports(wasm).some((each) => each.kind === 'memory');
}

/** One instance of the runtime, with all that it counts. */
export class Runtime {
  constructor(wrap) {
    this.wrap = wrap;
    this.functions = new Map();
    this.freed = [];
    this.prepared = [];
    this.placed = new Map();
    this.nextFunction = 1;
    this.failure = undefined;
    this.pending = []; // elements that come from a device
    this.turn = Promise.resolve(); // when the last run that may wait ends
    this.canWait = false;
    this.utf8 = {encode: new TextEncoder(), decode: new TextDecoder()};
    this.lost = new FinalizationRegistry((pointer) => this.c.ek_object_release(pointer));
  }

  /** Throws what WebAssembly throws. `wasm` is a module of ekiden.wasm, or of ekiden-threads.wasm. */
  async start(wasm) {
    const memory = takesMemory(wasm)
      ? new WebAssembly.Memory({initial: FIRST_PAGES, maximum: MOST_PAGES, shared: true}) : undefined;
    await this.instantiate(wasm, memory);
    this.c._initialize();
    this.scratch = this.c.ek_web_alloc(1 << 16, 16) >>> 0;
    this.scratchEnd = this.scratch + (1 << 16);
    return this;
  }

  async instantiate(wasm, memory) {
    const host = {
      place: (...given) => this.place(...given),
      follow: (...given) => this.follow(...given),
      drop: (first) => this.drop(first),
      features,
      now: () => performance.now(),
      warn: (line, size) => console.warn(this.text(line, size)),
      call: (...given) => this.called(...given),
      forget: (number) => this.functions.delete(number),
      device: (...given) => this.asked(...given),
      wait: CAN_SUSPEND ? new WebAssembly.Suspending(() => this.waited()) : () => -1,
    };
    const {exports} = await WebAssembly.instantiate(wasm, {ek: host, env: {memory}});
    this.isShared = memory !== undefined;
    this.c = this.isShared ? {...exports, memory} : exports;
    this.table = this.c.__indirect_function_table;
  }

  /** What a worker needs to be a thread of this runtime. */
  worker(wasm, number) {
    const stack = this.c.ek_web_alloc(STACK, 16) >>> 0;
    const local = this.c.ek_web_alloc(this.c.__tls_size.value + 16, 64) >>> 0;
    if (!stack || !local) throw errorOf('MemoryError', 'out of memory: a thread');
    return {wasm, memory: this.c.memory, number, stack: stack + STACK, local};
  }

  /** Is a thread of another runtime, for ever. */
  async serve({wasm, memory, number, stack, local}) {
    await this.instantiate(wasm, memory);
    this.c.__stack_pointer.value = stack;
    this.c.__wasm_init_tls(local);
    this.scratch = this.scratchEnd = 0;
    this.c.ek_web_worker(number);
  }

  /** Compiles the code of an artifact beside the thread that asks, as pages want it. */
  async prepare(bytes) {
    this.prepared = [];
    for (const text of codeIn(bytes)) {
      const module = await WebAssembly.compile(this.isShared ? sharedModule(text, true) : text).catch(() => undefined);
      if (module) this.prepared.push({text, module});
    }
  }

  // What the runtime asks for

  place(text, size, addresses, data) {
    try {
      const bytes = this.u8.slice(text, text + size);
      const known = this.prepared.find((each) => same(each.text, bytes));
      const module = known ? known.module
        : new WebAssembly.Module(this.isShared ? sharedModule(bytes, true) : bytes);
      const places = placesOf(module);
      const first = this.room(places);
      this.placed.set(first, places);
      new WebAssembly.Instance(module, this.importsOf(module, addresses, data, first));
      return first;
    } catch (error) {
      this.failure = error;
      return -1;
    }
  }

  /** The code that another thread has placed, at the same places of this one's table. */
  follow(text, size, addresses, data, first) {
    try {
      const bytes = sharedModule(this.u8.slice(text >>> 0, (text >>> 0) + size), false);
      const module = new WebAssembly.Module(bytes);
      const end = first + placesOf(module);
      if (this.table.length < end) this.table.grow(end - this.table.length);
      new WebAssembly.Instance(module, this.importsOf(module, addresses, data, first));
      return 0;
    } catch (error) {
      console.error(error);
      return -1;
    }
  }

  importsOf(module, addresses, data, first) {
    const constant = (value) => new WebAssembly.Global({value: 'i32', mutable: false}, value);
    const env = {
      memory: this.c.memory, __indirect_function_table: this.table, __memory_base: constant(data),
      __table_base: constant(first), __stack_pointer: this.c.__stack_pointer,
    };
    const given = {env, 'GOT.mem': {}};
    WebAssembly.Module.imports(module).slice(STANDARD_IMPORTS).forEach((each, at) => {
      const address = this.view.getUint32(addresses + 4 * at, true);
      given[each.module][each.name] = each.kind === 'function' ? this.table.get(address)
        : new WebAssembly.Global({value: 'i32', mutable: true}, address);
    });
    return given;
  }

  /** So many places of the table, one behind the other. */
  room(places) {
    const at = this.freed.findIndex((each) => each.places === places);
    return at < 0 ? this.table.grow(places) : this.freed.splice(at, 1)[0].first;
  }

  drop(first) {
    const places = this.placed.get(first);
    for (let at = 0; at < places; at++) this.table.set(first + at, null);
    this.placed.delete(first);
    this.freed.push({first, places});
  }

  /** A function of JavaScript, called by the runtime. */
  called(number, args, nargs, ret) {
    const {scratch: start, canWait} = this;
    this.canWait = false; // there is JavaScript in between
    try {
      if (start === 0) throw errorOf('RuntimeError', 'a function of JavaScript has one thread');
      const given = Array.from({length: nargs}, (_, at) => this.read(args + VALUE * at, true));
      this.refuseFar('a function of JavaScript takes tensors of the host');
      const result = this.functions.get(number)(...given);
      const owned = this.frame();
      this.write(ret, result, owned);
      this.keep(ret);
      this.leave(owned);
      return 0;
    } catch (error) {
      this.scratch = start;
      return this.fail(error);
    } finally {
      this.canWait = canWait;
    }
  }

  /** Devices, which have a driver here. */
  asked(what, id, args) {
    try {
      if (this.driver === undefined) throw errorOf('DeviceError', 'webgpu(0): its driver is of another thread');
      return this.driver.request(what, id, args);
    } catch (error) {
      return this.fail(error);
    }
  }

  /** What the driver wants to wait for. Other calls may come and end meanwhile. */
  async waited() {
    this.canWait = false;
    try {
      await this.driver.waiting();
      return 0;
    } catch (error) {
      return this.fail(error);
    } finally {
      this.canWait = true;
    }
  }

  /** Why a run cannot wait for a device. */
  get whyNoWait() {
    return CAN_SUSPEND ? 'it was not called by run() or callAsync(), or a function of JavaScript calls it'
      : 'this engine cannot suspend WebAssembly meanwhile (JSPI)';
  }

  /** Throws where elements were to come from a device. */
  refuseFar(message) {
    const {pending} = this;
    this.pending = [];
    if (pending.length === 0) return;
    pending.forEach((each) => each.catch(() => {}));
    throw errorOf('DeviceError', `webgpu(0): ${message}`);
  }

  fail(error) {
    const [plain, said] = error instanceof Error ? [error.name, error.message] : ['', String(error)];
    const kind = error?.kind ?? {Error: '', RangeError: 'ValueError'}[plain] ?? plain;
    const owned = this.frame();
    this.c.ek_web_error(this.cstring(kind || 'RuntimeError', owned), this.cstring(said, owned));
    this.leave(owned);
    return -1;
  }

  // Memory

  get view() {
    const {buffer} = this.c.memory; // of a longer one once memory has grown
    if (this.seen?.buffer !== buffer) this.seen = new DataView(buffer);
    return this.seen;
  }

  get u8() {
    return new Uint8Array(this.c.memory.buffer);
  }

  text(at, size) {
    const from = at >>> 0;
    const bytes = this.isShared ? this.u8.slice(from, from + size) : this.u8.subarray(from, from + size);
    return this.utf8.decode.decode(bytes);
  }

  pointer(at) {
    return this.view.getUint32(at, true);
  }

  /** What a call needs until it ends: memory, and references. */
  frame() {
    return {scratch: this.scratch, blocks: [], objects: []};
  }

  leave(owned) {
    owned.objects.forEach((each) => this.c.ek_object_release(each));
    owned.blocks.forEach((each) => this.c.ek_web_free(each));
    this.scratch = owned.scratch;
  }

  alloc(size, owned) {
    const at = this.scratch;
    const end = at + (size + 15 & ~15);
    if (end <= this.scratchEnd) {
      this.scratch = end;
      return at;
    }
    const block = this.c.ek_web_alloc(size, 16) >>> 0;
    if (!block) throw errorOf('MemoryError', `out of memory: ${size} bytes`);
    owned.blocks.push(block);
    return block;
  }

  /** The text at an address, up to a zero. */
  cstringAt(at) {
    return this.text(at, this.u8.indexOf(0, at) - at);
  }

  cstring(text, owned) {
    const bytes = this.utf8.encode.encode(text);
    const at = this.alloc(bytes.length + 1, owned);
    this.u8.set(bytes, at);
    this.u8[at + bytes.length] = 0;
    return at;
  }

  // Errors

  /** Throws this thread's error unless a function of the runtime said 0. */
  check(code) {
    if (code === 0) return;
    const pointer = this.c.ek_error_take() >>> 0;
    if (!pointer) throw errorOf('InternalError', 'the runtime failed without an error');
    const [kind, message, trace] = [0, 8, 16].map(
      (by) => this.text(this.pointer(pointer + HEADER + by), this.pointer(pointer + HEADER + by + 4)));
    this.c.ek_object_release(pointer);
    throw errorOf(kind, message, trace);
  }

  // Values

  write(at, value, owned) {
    const {view} = this;
    view.setBigUint64(at, 0n, true);
    view.setBigUint64(at + PAYLOAD, 0n, true);
    if (value === undefined || value === null) return;
    const type = typeof value;
    if (type === 'boolean') this.put(at, TYPES.bool, BigInt(value));
    else if (type === 'number' && Number.isSafeInteger(value)) this.put(at, TYPES.int, BigInt(value));
    else if (type === 'bigint') this.put(at, TYPES.int, this.fitting(value));
    else if (type === 'number') {
      view.setInt32(at, TYPES.float, true);
      view.setFloat64(at + PAYLOAD, value, true);
    } else if (type === 'string') this.writeText(at, value, owned);
    else if (type === 'function') this.object(at, TYPES.function, this.function_(value, owned), owned);
    else if (value instanceof Tensor) this.object(at, TYPES.tensor, this.tensor(value, owned), owned);
    else if (Array.isArray(value)) this.writeArray(at, value, owned);
    else if (value.pointer !== undefined && value.runtime === this) {
      const pointer = value.alive();
      this.c.ek_object_retain(pointer);
      this.object(at, view.getInt32(pointer + 8, true), pointer, owned);
    } else throw errorOf('TypeError', `a value expected, got ${type} of another kind`);
  }

  fitting(value) {
    if (BigInt.asIntN(64, value) === value) return value;
    throw errorOf('ValueError', `a number of 64 bits expected, got ${value}`);
  }

  put(at, type, payload) {
    this.view.setInt32(at, type, true);
    this.view.setBigInt64(at + PAYLOAD, payload, true);
  }

  /** A value that refers to an object, whose reference the frame drops. */
  object(at, type, pointer, owned) {
    owned.objects.push(pointer);
    this.view.setInt32(at, type, true);
    this.view.setUint32(at + PAYLOAD, pointer, true);
  }

  writeText(at, text, owned) {
    const bytes = this.utf8.encode.encode(text);
    const from = this.alloc(bytes.length, owned);
    this.u8.set(bytes, from);
    this.check(this.c.ek_string_new(TYPES.string, from, bytes.length, at));
    if (this.view.getInt32(at, true) >= TYPES.object) owned.objects.push(this.pointer(at + PAYLOAD));
  }

  writeArray(at, items, owned) {
    const from = this.values(items, owned);
    const out = this.alloc(4, owned);
    this.check(this.c.ek_container_new(TYPES.array, 0, from, BigInt(items.length), out));
    this.object(at, TYPES.array, this.pointer(out), owned);
  }

  /** Values one behind the other. */
  values(items, owned) {
    const from = this.alloc(VALUE * items.length, owned);
    items.forEach((each, i) => this.write(from + VALUE * i, each, owned));
    return from;
  }

  function_(body, owned) {
    const out = this.alloc(4, owned);
    const number = this.nextFunction++;
    this.functions.set(number, (...args) => body(...args));
    this.check(this.c.ek_web_function(number, out));
    return this.pointer(out);
  }

  /** A tensor of the runtime with a copy of the elements. */
  tensor(value, owned) {
    const [code, bits, kind] = DTYPES[value.dtype] ?? [];
    if (!(value.data instanceof (kind ?? Object))) {
      throw errorOf('TypeError', `tensor of ${value.dtype}: data in an array of another type`);
    }
    const {shape} = value;
    const count = shape.reduce((a, b) => a * b, 1);
    if (count !== value.data.length) {
      throw errorOf('ValueError', `tensor: ${count} elements expected, got ${value.data.length}`);
    }
    const at = this.alloc(8 * shape.length + 16, owned);
    const [dtype, device, out] = [0, 4, 12].map((by) => at + 8 * shape.length + by);
    const {view} = this;
    shape.forEach((extent, i) => view.setBigInt64(at + 8 * i, BigInt(extent), true));
    view.setUint32(dtype, code | bits << 8 | 1 << 16, true);
    view.setInt32(device, 1, true);
    view.setInt32(device + 4, 0, true);
    this.check(this.c.ek_tensor_new(at, shape.length, dtype, device, out));
    const pointer = this.pointer(out);
    const {data} = value;
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    this.u8.set(bytes, this.pointer(pointer + HEADER));
    return pointer;
  }

  /** A value of the runtime as one of JavaScript. One that is `borrowed` keeps its references. */
  read(at, borrowed = false) {
    const {view} = this;
    const type = view.getInt32(at, true);
    const payload = at + PAYLOAD;
    if (type >= TYPES.object) return this.readObject(type, this.pointer(payload), borrowed);
    switch (type) {
      case TYPES.none: return undefined;
      case TYPES.int: return this.whole(view.getBigInt64(payload, true));
      case TYPES.bool: return view.getBigInt64(payload, true) !== 0n;
      case TYPES.float: return view.getFloat64(payload, true);
      case TYPES.smallString: return this.text(payload, view.getUint32(at + 4, true));
      case TYPES.smallBytes: return this.u8.slice(payload, payload + view.getUint32(at + 4, true));
      case TYPES.rawString: return this.cstringAt(this.pointer(payload));
      case TYPES.dltensor: return this.readTensor(this.pointer(payload));
      default: throw errorOf('TypeError', `a value of type ${type} is not for JavaScript`);
    }
  }

  whole(value) {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : value;
  }

  readObject(type, pointer, borrowed) {
    if (borrowed) this.c.ek_object_retain(pointer);
    const made = this.plain(type, pointer);
    if (made === undefined) return this.wrap(this, type, pointer); // which owns the reference
    this.c.ek_object_release(pointer);
    return made;
  }

  /** What has a form of its own in JavaScript; undefined for the rest. */
  plain(type, pointer) {
    const at = pointer + HEADER;
    const items = (from, n) => Array.from({length: n}, (_, i) => this.read(from + VALUE * i, true));
    switch (type) {
      case TYPES.string: return this.text(this.pointer(at), this.pointer(at + 4));
      case TYPES.bytes: return this.u8.slice(this.pointer(at), this.pointer(at) + this.pointer(at + 4));
      case TYPES.tensor: return this.readTensor(at);
      case TYPES.array: return items(this.pointer(at), this.pointer(at + 8));
      case TYPES.adt: return items(at + 8, this.view.getInt32(at + 4, true));
      case TYPES.shape: {
        const [from, n] = [this.pointer(at), this.pointer(at + 4)];
        const extent = (_, i) => this.whole(this.view.getBigInt64(from + 8 * i, true));
        return Array.from({length: n}, extent);
      }
      default: return undefined;
    }
  }

  /** A copy of what a DLTensor describes. */
  readTensor(at) {
    const {view} = this;
    const ndim = view.getInt32(at + 12, true);
    const [dims, steps] = [this.pointer(at + 20), this.pointer(at + 24)];
    const extent = (from) => (_, i) => Number(view.getBigInt64(from + 8 * i, true));
    const shape = Array.from({length: ndim}, extent(dims));
    const dtype = DTYPE_OF.get(view.getUint8(at + 16) << 8 | view.getUint8(at + 17));
    if (dtype === undefined) throw errorOf('TypeError', 'a tensor of a dtype that is not for JavaScript');
    const made = new Tensor(dtype, shape);
    const from = this.pointer(at) + Number(view.getBigUint64(at + 32, true));
    const {constructor: kind, length, byteLength} = made.data;
    const strides = steps ? Array.from({length: ndim}, extent(steps)) : undefined;
    if (view.getInt32(at + 4, true) !== CPU) {
      this.fetch(made, from, strides);
      return made;
    }
    if (!strides || isCompact(shape, strides)) {
      new Uint8Array(made.data.buffer).set(this.u8.subarray(from, from + byteLength));
      return made;
    }
    const memory = new kind(this.c.memory.buffer);
    const first = from / kind.BYTES_PER_ELEMENT;
    for (let i = 0; i < length; i++) made.data[i] = memory[first + offset(i, shape, strides)];
    return made;
  }

  /** Has the elements of a tensor come from the device that they lie on. */
  fetch(made, from, strides) {
    if (made.data.length === 0) return;
    if (strides && !isCompact(made.shape, strides)) {
      throw errorOf('DeviceError', `webgpu(0): a tensor of shape [${made.shape}] has strides`);
    }
    const bytes = new Uint8Array(made.data.buffer);
    this.pending.push(this.driver.read(from, bytes.length).then((found) => bytes.set(found)));
  }

  /** Takes a reference of what a value refers to, which then owns it. */
  keep(at) {
    if (this.view.getInt32(at, true) >= TYPES.object) this.c.ek_object_retain(this.pointer(at + PAYLOAD));
  }

  /** An object's address, whose type must be one. */
  expect(pointer, type, what) {
    if (this.view.getInt32(pointer + 8, true) === type) return pointer;
    throw errorOf('TypeError', `${what} expected, got another object`);
  }

  /** Calls a function object. */
  call(pointer, args) {
    this.expect(pointer, TYPES.function, 'a function');
    const owned = this.frame();
    this.c.ek_object_retain(pointer);
    owned.objects.push(pointer);
    try {
      const given = this.values(args, owned);
      const ret = this.result(owned);
      const code = this.table.get(this.pointer(pointer + HEADER))(pointer, given, args.length, ret);
      if (this.isShared) this.catchUp();
      this.check(code);
      const found = this.read(ret);
      this.refuseFar('its results lie there, which only run() and callAsync() wait for');
      return found;
    } finally {
      this.leave(owned);
    }
  }

  /** The same, which waits for what lies on devices: one such call after the other. */
  callWaiting(pointer, args) {
    if (this.driver === undefined) return this.call(pointer, args);
    const made = this.turn.then(() => this.callInTurn(pointer, args));
    this.turn = made.catch(() => {});
    return made;
  }

  async callInTurn(pointer, args) {
    this.expect(pointer, TYPES.function, 'a function');
    const owned = this.frame();
    this.c.ek_object_retain(pointer);
    owned.objects.push(pointer);
    try {
      const given = this.values(args, owned);
      const ret = this.result(owned);
      const body = this.table.get(this.pointer(pointer + HEADER));
      this.canWait = CAN_SUSPEND;
      const call = CAN_SUSPEND ? WebAssembly.promising(body) : body;
      const running = call(pointer, given, args.length, ret);
      this.canWait = false; // of what is called while it waits
      const code = await running;
      this.canWait = false;
      if (this.isShared) this.catchUp();
      this.check(code);
      const found = this.read(ret);
      const {pending} = this;
      this.pending = [];
      await Promise.all([...pending, this.driver.settle()]);
      return found;
    } finally {
      this.canWait = false;
      this.leave(owned);
    }
  }

  /** Has this thread see memory that another made longer. */
  catchUp() {
    if (this.c.ek_web_pages() > this.c.memory.buffer.byteLength >>> 16) this.c.memory.grow(0);
  }

  /** An empty value. */
  result(owned) {
    const at = this.alloc(VALUE, owned);
    this.view.setBigUint64(at, 0n, true);
    this.view.setBigUint64(at + PAYLOAD, 0n, true);
    return at;
  }

  /** Runs `body(frame)` in a frame of its own. */
  within(body) {
    const owned = this.frame();
    try {
      return body(owned);
    } finally {
      this.leave(owned);
    }
  }
}

function isCompact(shape, strides) {
  let expected = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    if (shape[i] === 0) return true;
    if (shape[i] !== 1 && strides[i] !== expected) return false;
    expected *= shape[i];
  }
  return true;
}

function offset(index, shape, strides) {
  let at = 0;
  for (let i = shape.length - 1, rest = index; i >= 0; i--) {
    at += rest % shape[i] * strides[i];
    rest = Math.floor(rest / shape[i]);
  }
  return at;
}
