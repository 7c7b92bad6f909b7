'use strict';
// Runs models that Ekiden compiled: see index.d.ts for what each function takes and throws.

const {existsSync} = require('node:fs');
const path = require('node:path');

/** The addon that came with the package for this platform, else what build.js made. */
const PREBUILT = path.join(__dirname, `prebuilt/${process.platform}-${process.arch}/ekiden.node`);
const ADDON = existsSync(PREBUILT) ? PREBUILT : './ekiden.node';
const native = require(process.env.EKIDEN_NODE_ADDON || ADDON);

const TYPES = {function: 68, module: 73, executable: 131};
const PARTS = {params: 1};
const FIELDS = {any: -1, int: 1, bool: 2, float: 3};

class EkidenError extends Error {
  constructor(kind, message, backtrace = '') {
    super(message);
    this.name = kind;
    this.kind = kind;
    this.backtrace = backtrace;
  }
}

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array, float16: Uint16Array,
  bfloat16: Uint16Array,
};

class Tensor {
  constructor(dtype, shape, data) {
    const kind = ARRAYS[dtype];
    if (!kind) throw new EkidenError('TypeError', `no tensors of dtype '${dtype}'`);
    const size = shape.reduce((a, b) => a * b, 1);
    this.dtype = dtype;
    this.shape = shape;
    this.data = data === undefined ? new kind(size) : data instanceof kind ? data : kind.from(data);
    if (this.data.length !== size) {
      const got = this.data.length;
      const message = `tensor of shape [${shape}]: ${size} elements expected, got ${got}`;
      throw new EkidenError('ValueError', message);
    }
  }

  get device() {
    return {type: 1, id: 0};
  }
}

native.setClasses(EkidenError, Tensor);

/** Converts a value of the runtime: reference-counted objects get their classes. */
function wrap(value) {
  if (Array.isArray(value)) return value.map(wrap);
  if (value === null || typeof value !== 'object' || value.handle === undefined) return value;
  if (value instanceof Obj) return value;
  if (value.kind === TYPES.function) return new Func(value.handle);
  if (value.kind === TYPES.module) return new Module(value.handle);
  return new Obj(value.handle);
}

class Counted {
  constructor(handle) {
    this.handle = handle;
  }

  close() {
    native.close(this.handle);
  }
}

/** A function of JavaScript that gets classes, not handles. */
function outward(value) {
  if (Array.isArray(value)) return value.map(outward);
  if (typeof value !== 'function') return value;
  return (...args) => outward(value(...args.map(wrap)));
}

class Func extends Counted {
  call(...args) {
    return wrap(native.call(this.handle, args.map(outward)));
  }

  async callAsync(...args) {
    return wrap(await native.callAsync(this.handle, args.map(outward)));
  }
}

class Module extends Counted {
  static load(path) {
    return new Module(native.load(String(path)));
  }

  names() {
    return native.names(this.handle);
  }

  get(name) {
    const found = native.get(this.handle, name);
    if (found !== undefined) return new Func(found);
    const message = `module: no function named '${name}'; there are ${this.names().join(', ')}`;
    throw new EkidenError('AttributeError', message);
  }
}

class Obj extends Counted {
  static create(key, ...values) {
    return new Obj(native.object(key, values.map(outward)));
  }

  get typeKey() {
    return native.typeKey(this.handle);
  }

  fields() {
    return native.fields(this.handle);
  }

  get(name) {
    return wrap(native.getField(this.handle, name));
  }

  set(name, value) {
    native.setField(this.handle, name, outward(value));
  }

  equals(other) {
    return native.equal(this.handle, other.handle);
  }
}

function define(key, fields) {
  const kinds = Object.values(fields).map((kind) => FIELDS[kind]);
  const wrong = Object.keys(fields).find((name) => FIELDS[fields[name]] === undefined);
  if (wrong) throw new EkidenError('TypeError', `define: no kind of field '${fields[wrong]}'`);
  native.define(key, Object.keys(fields), kinds);
}

/** Calls a function that nobody else has; a model would live as long as it, until the collector comes. */
function callOnce(function_, ...args) {
  try {
    return function_.call(...args);
  } finally {
    function_.close();
  }
}

function show(tensor) {
  return `${tensor.dtype} [${tensor.shape}]`;
}

class Model {
  constructor(module) {
    this.module = module;
    this.executable = callOnce(module.get('get_executable'));
    this.known = new Map();
  }

  /** A function and the names of its inputs. */
  entry(name) {
    if (!this.known.has(name)) {
      const function_ = this.module.get(name);
      const index = this.module.names().indexOf(name);
      const inputs = native.item(this.executable.handle, PARTS.params, index);
      this.known.set(name, {function_, inputs, index});
    }
    return this.known.get(name);
  }

  static load(path) {
    return new Model(Module.load(path));
  }

  close() {
    for (const {function_} of this.known.values()) function_.close();
    this.executable.close();
    this.module.close();
  }

  inputs(name = 'main') {
    return [...this.entry(name).inputs];
  }

  /** The inputs in their order. */
  positionalArgs(inputs, name) {
    const wanted = this.entry(name).inputs;
    const unknown = Object.keys(inputs).find((each) => !wanted.includes(each));
    if (unknown !== undefined) {
      const message = `no input '${unknown}'; there are ${wanted.join(', ')}`;
      throw new EkidenError('InputError', message);
    }
    const missing = wanted.find((each) => inputs[each] === undefined);
    if (missing !== undefined) throw new EkidenError('InputError', `input '${missing}' is missing`);
    return wanted.map((each) => inputs[each]);
  }

  runSync(inputs, name = 'main') {
    return this.entry(name).function_.call(...this.positionalArgs(inputs, name));
  }

  async run(inputs, name = 'main') {
    return this.entry(name).function_.callAsync(...this.positionalArgs(inputs, name));
  }

  runInto(inputs, outputs, name = 'main') {
    const results = [this.runSync(inputs, name)].flat(Infinity);
    if (results.length !== outputs.length) {
      const message = `expected ${results.length} outputs, got ${outputs.length}`;
      throw new EkidenError('ValueError', message);
    }
    results.forEach((result, at) => {
      const [wanted, got] = [show(result), show(outputs[at])];
      if (wanted === got) return;
      const message = `output ${at}: shape and type ${wanted} expected, got ${got}`;
      throw new EkidenError('ValueError', message);
    });
    results.forEach((result, at) => outputs[at].data.set(result.data));
  }

  profile(inputs, name = 'main') {
    const machine = new Obj(native.machine(this.executable.handle));
    const debug = callOnce(registry.get('ek.vm.module'), machine);
    const {index} = this.entry(name);
    const args = this.positionalArgs(inputs, name);
    const [result, ...rest] = callOnce(debug.get('kernels'), index, ...args);
    const kernels = [];
    for (let at = 0; at < rest.length; at += 3) {
      kernels.push({name: rest[at], calls: rest[at + 1], nanoseconds: rest[at + 2]});
    }
    [debug, machine].forEach((each) => each.close());
    return {result, kernels};
  }

  get numThreads() {
    return callOnce(registry.get('ek.executable.num_threads'), this.executable);
  }

  set numThreads(n) {
    if (!(n >= 0)) throw new EkidenError('ValueError', `threads: 0 or more expected, got ${n}`);
    callOnce(registry.get('ek.executable.num_threads'), this.executable, n);
  }
}

const registry = {
  register(name, body) {
    native.registrySet(name, outward(body));
  },

  remove(name) {
    return native.registryRemove(name);
  },

  get(name) {
    const found = native.registryGet(name);
    if (found === undefined) throw new EkidenError('KeyError', `there is no function '${name}'`);
    return new Func(found);
  },
};

function numThreads(n = 0) {
  return native.numThreads(n);
}

module.exports = {
  EkidenError, Tensor, Module, Model, Func, Obj, define, registry, numThreads,
};
