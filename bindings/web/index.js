// Runs models that Ekiden compiled, in browsers, their workers and Node: index.d.ts says what each
// function takes and throws.

import {EkidenError, errorOf, errors} from './errors.js';
import {features, needsWebGpu, importsMemory} from './modules.js';
import {Runtime} from './runtime.js';
import {Tensor} from './tensor.js';
import {IS_NODE, startThreads, wantedThreads} from './threads.js';
import {TYPES} from './values.js';

export {EkidenError, Tensor, errors};

const PARTS = {params: 1, names: 1};
const FIELDS = {any: -1, int: 1, bool: 2, float: 3};
const FIELD_BYTES = 56;

let started;
let runtime;
let gpu;
let threads = {n: 1, why: 'the runtime is not there yet'};

/** Bytes of a file of the page, or of Node's disk. */
async function fetchBytes(from) {
  if (typeof from === 'string' || from instanceof URL) {
    const isFile = from instanceof URL ? from.protocol === 'file:' : !/^[a-z]+:/i.test(from);
    if (IS_NODE && isFile) {
      const {readFile} = await import(/* webpackIgnore: true */ 'node:fs/promises');
      return new Uint8Array(await readFile(from));
    }
  }
  const response = from instanceof Response ? from : await fetch(from);
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function compileRuntime(wasm) {
  const isBytes = ArrayBuffer.isView(wasm) || wasm instanceof ArrayBuffer;
  const source = wasm instanceof WebAssembly.Module || isBytes ? wasm : await fetchBytes(wasm);
  return source instanceof WebAssembly.Module ? source : WebAssembly.compile(source);
}

async function start({wasm, threads: asked, webgpu}) {
  let found = await wantedThreads(asked);
  const place = (n) => new URL(n > 1 ? './ekiden-threads.wasm' : './ekiden.wasm', import.meta.url);
  const module = await compileRuntime(wasm ?? place(found.n));
  if (found.n > 1 && !importsMemory(module)) {
    const why = 'the runtime that was given has no threads';
    if (asked !== undefined) throw errorOf('RuntimeError', `threads: ${asked} were asked for, but ${why}`);
    found = {n: 1, why};
  }
  let made = await new Runtime(wrap).start(module);
  try {
    if (found.n > 1) await startThreads(made, module, found.n);
  } catch (error) {
    if (asked !== undefined || wasm !== undefined) throw error;
    found = {n: 1, why: error.message};
    made = await new Runtime(wrap).start(await compileRuntime(place(1)));
  }
  threads = found;
  runtime = made;
  gpu = webgpu;
}

/** Has the runtime know of WebGPU, once. */
async function openWebGpu(of) {
  of.opening ??= import('./driver.js').then(async ({open}) => {
    of.driver = await open(of, gpu);
    of.check(of.c.ek_web_webgpu());
  });
  await of.opening.catch((error) => {
    of.opening = undefined;
    throw error;
  });
}

/** Starts the runtime, once: `wasm` is where its file is, its bytes, or a compiled module; `threads`
 * how many share a loop, else as many as there are cores where the page allows threads. */
export function init(options = {}) {
  started ??= start(options);
  started.catch(() => {
    started = undefined;
  });
  return started;
}

function running() {
  if (runtime !== undefined) return runtime;
  throw errorOf('RuntimeError', 'the runtime is not there yet: await init() or load() first');
}

/** Features of the engine, and the number of threads that share a loop; `oneThread` says why it is one. */
export function abilities() {
  const found = features();
  const {n, why} = threads;
  return {
    simd: (found & 1) !== 0, relaxedSimd: (found & 2) !== 0, threads: n,
    webgpu: (gpu ?? globalThis.navigator?.gpu) !== undefined,
    ...(why === undefined ? {} : {oneThread: why}),
  };
}

function wrap(of, type, pointer) {
  if (type === TYPES.function) return new Func(of, pointer);
  return type === TYPES.module ? new Module(of, pointer) : new Obj(of, pointer);
}

class Counted {
  constructor(of, pointer) {
    this.runtime = of;
    this.pointer = pointer;
    of.lost.register(this, pointer, this);
  }

  /** Its address; throws where it is closed. */
  alive() {
    if (this.pointer === 0) throw errorOf('ValueError', 'it is closed');
    return this.pointer;
  }

  close() {
    if (this.pointer === 0) return;
    this.runtime.lost.unregister(this);
    this.runtime.c.ek_object_release(this.pointer);
    this.pointer = 0;
  }
}

/** Returns the address of the object that the runtime's `make(out)` creates. */
function given(of, make) {
  return of.within((owned) => {
    const out = of.alloc(4, owned);
    of.view.setUint32(out, 0, true);
    of.check(make(out, owned));
    return of.pointer(out);
  });
}

export class Func extends Counted {
  call(...args) {
    return this.runtime.call(this.alive(), args);
  }

  async callAsync(...args) {
    return this.runtime.callWaiting(this.alive(), args);
  }
}

export class Module extends Counted {
  alive() {
    return this.runtime.expect(super.alive(), TYPES.module, 'a module');
  }

  /** Loads a file; see load(). */
  static async load(from, name) {
    await init();
    const isBytes = ArrayBuffer.isView(from) || from instanceof ArrayBuffer;
    const called = name ?? (isBytes ? 'model.eki' : nameOf(from));
    const bytes = isBytes ? bytesOf(from) : await fetchBytes(from).catch((error) => {
      throw Object.assign(errorOf('OSError', `load '${called}': ${error.message}`), {cause: error});
    });
    const of = running();
    if (needsWebGpu(bytes)) await openWebGpu(of);
    await of.prepare(bytes);
    return Module.from(bytes, called);
  }

  static from(bytes, called) {
    const of = running();
    of.failure = undefined;
    try {
      const pointer = given(of, (out, owned) => {
        const at = of.c.ek_web_file(bytes.length) >>> 0;
        if (at === 0) throw errorOf('MemoryError', `load '${called}': out of memory`);
        of.u8.set(bytes, at);
        return of.c.ek_module_load(of.cstring(called, owned), out);
      });
      return new Module(of, pointer);
    } catch (error) {
      if (of.failure !== undefined) error.cause = of.failure;
      throw error;
    } finally {
      of.prepared = [];
    }
  }

  names() {
    const of = this.runtime;
    const pointer = this.alive();
    return of.within((owned) => {
      const out = of.result(owned);
      of.check(of.c.ek_module_part(pointer, PARTS.names, out));
      return of.read(out);
    });
  }

  get(name) {
    const of = this.runtime;
    const pointer = this.alive();
    const found = given(of, (out, owned) => of.c.ek_module_get(pointer, of.cstring(name, owned), out));
    if (found !== 0) return new Func(of, found);
    const message = `module: no function named '${name}'; there are ${this.names().join(', ')}`;
    throw errorOf('AttributeError', message);
  }
}

function bytesOf(data) {
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** What a file is called; one without a suffix is taken for an artifact. */
function nameOf(from) {
  const url = String(from?.url ?? from);
  const path = /^[a-z]+:/i.test(url) ? decodeURIComponent(new URL(url).pathname) : url;
  const last = path.split(/[?#]/)[0];
  return /\.[^/.]+$/.test(last) ? last : `${last}.eki`;
}

export class Obj extends Counted {
  static create(key, ...values) {
    const of = running();
    return new Obj(of, given(of, (out, owned) => {
      const type = of.c.ek_type_register(of.cstring(key, owned), FIELDS.any);
      if (type < 0) throw errorOf('TypeError', `there is no type '${key}'`);
      return of.c.ek_object_new(type, of.values(values, owned), values.length, out);
    }));
  }

  /** The runtime's description of its type. */
  get info() {
    const of = this.runtime;
    return of.c.ek_type_get(of.view.getInt32(this.alive() + 8, true)) >>> 0;
  }

  get typeKey() {
    const of = this.runtime;
    const at = of.pointer(this.info);
    return of.text(at, of.u8.indexOf(0, at) - at);
  }

  /** Where each field is described, by name. */
  get table() {
    const of = this.runtime;
    const {info} = this;
    const [from, n] = [of.pointer(info + 36), of.view.getInt32(info + 44, true)];
    return new Map(Array.from({length: n}, (_, i) => {
      const at = from + FIELD_BYTES * i;
      const name = of.pointer(at);
      return [of.text(name, of.u8.indexOf(0, name) - name), at];
    }));
  }

  fields() {
    return [...this.table.keys()];
  }

  field(name) {
    const found = this.table.get(name);
    if (found !== undefined) return found;
    const message = `${this.typeKey} has no field '${name}'; there are ${this.fields().join(', ')}`;
    throw errorOf('AttributeError', message);
  }

  get(name) {
    const of = this.runtime;
    const field = this.field(name);
    return of.within((owned) => {
      const out = of.result(owned);
      of.check(of.c.ek_field_get(this.alive(), field, out));
      return of.read(out);
    });
  }

  set(name, value) {
    const of = this.runtime;
    const field = this.field(name);
    of.within((owned) => of.check(of.c.ek_field_set(this.alive(), field, of.values([value], owned))));
  }

  equals(other) {
    const of = this.runtime;
    if (!(other instanceof Obj)) throw errorOf('TypeError', 'equals: an object expected');
    const found = of.within((owned) => {
      const at = of.values([this, other], owned);
      return of.c.ek_value_equal(at, at + 16);
    });
    if (found < 0) of.check(-1);
    return found === 1;
  }
}

/** Defines a type, whose fields are values of the runtime. */
export function define(key, fields) {
  const of = running();
  const names = Object.keys(fields);
  const wrong = names.find((name) => FIELDS[fields[name]] === undefined);
  if (wrong) throw errorOf('TypeError', `define: no kind of field '${fields[wrong]}'`);
  of.within((owned) => {
    const type = of.c.ek_type_register(of.cstring(key, owned), TYPES.object);
    if (type < 0) of.check(-1);
    const rows = of.alloc(FIELD_BYTES * names.length, owned);
    of.u8.fill(0, rows, rows + FIELD_BYTES * names.length);
    names.forEach((name, i) => {
      const at = rows + FIELD_BYTES * i;
      const text = of.cstring(name, owned);
      of.view.setUint32(at, text, true);
      of.view.setInt32(at + 8, FIELDS[fields[name]], true);
    });
    const definition = of.alloc(48, owned);
    of.u8.fill(0, definition, definition + 48);
    of.view.setUint32(definition + 16, rows, true);
    of.view.setInt32(definition + 24, names.length, true);
    of.check(of.c.ek_type_define(type, definition));
  });
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

/** Loads a model: its URL or path, a Response, or its bytes; `name` is for messages. */
export async function load(from, {name} = {}) {
  return new Model(await Module.load(from, name));
}

export class Model {
  constructor(module) {
    this.module = module;
    this.executable = callOnce(module.get('get_executable'));
    this.known = new Map();
  }

  /** A function and the names of its inputs. */
  entry(name) {
    if (!this.known.has(name)) {
      const of = this.module.runtime;
      const function_ = this.module.get(name);
      const index = this.module.names().indexOf(name);
      const inputs = of.within((owned) => {
        const out = of.result(owned);
        const at = BigInt(index);
        of.check(of.c.ek_executable_item(this.executable.alive(), PARTS.params, at, out));
        return of.read(out);
      });
      this.known.set(name, {function_, inputs, index});
    }
    return this.known.get(name);
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
      throw errorOf('InputError', `no input '${unknown}'; there are ${wanted.join(', ')}`);
    }
    const missing = wanted.find((each) => inputs[each] === undefined);
    if (missing !== undefined) throw errorOf('InputError', `input '${missing}' is missing`);
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
      throw errorOf('ValueError', message);
    }
    results.forEach((result, at) => {
      const [wanted, got] = [show(result), show(outputs[at])];
      if (wanted === got) return;
      const message = `output ${at}: shape and type ${wanted} expected, got ${got}`;
      throw errorOf('ValueError', message);
    });
    results.forEach((result, at) => outputs[at].data.set(result.data));
  }

  profile(inputs, name = 'main') {
    const of = this.module.runtime;
    const executable = this.executable.alive();
    const machine = new Obj(of, given(of, (out) => of.c.ek_vm_new(executable, out)));
    const debug = callOnce(registry.get('ek.vm.module'), machine);
    const {index} = this.entry(name);
    const [result, ...rest] = callOnce(debug.get('kernels'), index, ...this.positionalArgs(inputs, name));
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
    if (!(n >= 0)) throw errorOf('ValueError', `threads: 0 or more expected, got ${n}`);
    callOnce(registry.get('ek.executable.num_threads'), this.executable, n);
  }
}

/** The functions that are known by name. */
export const registry = {
  register(name, body) {
    const of = running();
    of.within((owned) => {
      const made = of.function_(body, owned);
      owned.objects.push(made);
      of.check(of.c.ek_registry_set(of.cstring(name, owned), made, 0));
    });
  },

  remove(name) {
    const of = running();
    return of.within((owned) => of.c.ek_registry_set(of.cstring(name, owned), 0, 1) === 1);
  },

  get(name) {
    const of = running();
    const found = of.within((owned) => of.c.ek_registry_get(of.cstring(name, owned)) >>> 0);
    if (found === 0) throw errorOf('KeyError', `there is no function '${name}'`);
    return new Func(of, found);
  },
};
