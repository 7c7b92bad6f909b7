// Values of the runtime as those of JavaScript, both ways.

import {errorOf} from './errors.js';
import {HEADER, Memory} from './memory.js';
import {DTYPES, DTYPE_OF, Tensor, isCompact, offset} from './tensor.js';

export const TYPES = {
  none: 0, int: 1, bool: 2, float: 3, dltensor: 7, rawString: 8, bytesPointer: 9, smallString: 11,
  smallBytes: 12, object: 64, string: 65, bytes: 66, function: 68, shape: 69, tensor: 70, array: 71,
  module: 73, adt: 129,
};
export const VALUE = 16;
const PAYLOAD = 8, CPU = 1;

/** Memory with values. What counts references is made by `wrap(runtime, type, pointer)`. */
export class Values extends Memory {
  constructor(wrap) {
    super();
    this.wrap = wrap;
    this.functions = new Map();
    this.nextFunction = 1;
  }

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

  /** Copies the elements of a tensor from its device. */
  fetch(made, from, strides) {
    if (made.data.length === 0) return;
    if (strides && !isCompact(made.shape, strides)) {
      throw errorOf('DeviceError', `webgpu(0): a tensor of shape [${made.shape}] has strides`);
    }
    const bytes = new Uint8Array(made.data.buffer);
    const coming = this.driver.fetch(bytes, from);
    if (coming !== undefined) this.pending.push(coming);
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

  /** An empty value. */
  result(owned) {
    const at = this.alloc(VALUE, owned);
    this.view.setBigUint64(at, 0n, true);
    this.view.setBigUint64(at + PAYLOAD, 0n, true);
    return at;
  }
}
