// The runtime in WebAssembly: the imports that it needs from its host, and calls.
//
// Pointers have 4 bytes there. The layouts are those of runtime.h, which asserts them for both widths.

import {errorOf} from './errors.js';
import {HEADER} from './memory.js';
import {
  CAN_SUSPEND, FIRST_PAGES, MAX_PAGES, codeIn, features, numTableEntries, sharedModule, importsMemory,
} from './modules.js';
import {TYPES, VALUE, Values} from './values.js';

const STACK = 1 << 20, SCRATCH = 1 << 16;
const STANDARD_IMPORTS = 5; // of a module of kernels

function same(a, b) {
  return a.length === b.length && a.every((each, at) => each === b[at]);
}

/** One instance of the runtime, with all that it counts. */
export class Runtime extends Values {
  constructor(wrap) {
    super(wrap);
    this.freed = [];
    this.prepared = [];
    this.placed = new Map();
    this.failure = undefined;
    this.pending = []; // elements that come from a device
    this.turn = Promise.resolve(); // when the last run that may wait ends
    this.canWait = false;
    this.lost = new FinalizationRegistry((pointer) => this.c.ek_object_release(pointer));
  }

  /** Throws what WebAssembly throws. `wasm` is a module of ekiden.wasm, or of ekiden-threads.wasm. */
  async start(wasm) {
    const memory = importsMemory(wasm)
      ? new WebAssembly.Memory({initial: FIRST_PAGES, maximum: MAX_PAGES, shared: true}) : undefined;
    await this.instantiate(wasm, memory);
    this.c._initialize();
    this.takeScratch(SCRATCH);
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

  /** Compiles the code of an artifact off the calling thread, as pages require. */
  async prepare(bytes) {
    this.prepared = [];
    for (const text of codeIn(bytes)) {
      const module = await WebAssembly.compile(this.isShared ? sharedModule(text, true) : text).catch(() => undefined);
      if (module) this.prepared.push({text, module});
    }
  }

  // Imports of the runtime

  place(text, size, addresses, data) {
    try {
      const bytes = this.u8.slice(text, text + size);
      const cached = this.prepared.find((entry) => same(entry.text, bytes));
      const module = cached ? cached.module
        : new WebAssembly.Module(this.isShared ? sharedModule(bytes, true) : bytes);
      const numEntries = numTableEntries(module);
      const first = this.room(numEntries);
      this.placed.set(first, numEntries);
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
      const end = first + numTableEntries(module);
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
      : 'this engine cannot suspend WebAssembly meanwhile (JSPI), and only a worker of an isolated page can wait';
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
      if (this.driver?.isBlocking) this.driver.settle();
      this.refuseFar('its results lie there, which only run() and callAsync() wait for');
      return found;
    } finally {
      this.leave(owned);
    }
  }

  /** The same, and waits for tensors on devices; such calls run one after the other. */
  callWaiting(pointer, args) {
    if (this.driver === undefined || this.driver.isBlocking) return this.call(pointer, args);
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
      this.canWait = false; // for calls made while it waits
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
}
