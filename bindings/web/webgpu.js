// A device of WebGPU: memory by addresses, and kernels in WGSL.
//
// Nothing here waits. Launches are recorded, and go to the queue before something is written or read;
// reads return promises. codegen/device/wgsl.py declares the arguments of a kernel.

import {errorOf} from './errors.js';

/** What WebGPU has offsets at multiples of, how many blocks a dimension may have, and bytes of the
 * numbers that wait for the queue. */
const ALIGN = 256, LINE = 65535, NUMBERS = 1 << 18;
const SPACE = 2 ** 32; // bytes of address space; addresses name buffers and are never dereferenced
const USAGE = {mapRead: 1, copySource: 4, copyTarget: 8, uniform: 64, storage: 128};
const COMPUTE = 4, READ = 1; // GPUShaderStage, GPUMapMode

export function fail(message) {
  return errorOf('DeviceError', `webgpu(0): ${message}`);
}

function up(size, to) {
  return Math.ceil(size / to) * to;
}

/** Memory of a device, by addresses. A freed buffer is kept for the next request of its size. */
class Memory {
  constructor(device) {
    this.device = device;
    this.blocks = []; // in the order of their addresses
    this.idle = []; // of them, the oldest first
    this.used = this.most = this.kept = 0; // bytes
    this.destroyed = 0; // how often
  }

  alloc(wanted) {
    const size = up(Math.max(wanted, 1), ALIGN);
    const at = this.idle.findLastIndex((each) => each.size === size);
    const found = at < 0 ? this.fresh(size) : this.idle.splice(at, 1)[0];
    if (at >= 0) this.kept -= size;
    this.used += size;
    this.most = Math.max(this.most, this.used);
    found.isIdle = false;
    return found;
  }

  fresh(size) {
    const {maxStorageBufferBindingSize: bound, maxBufferSize: most} = this.device.limits;
    if (size > Math.min(bound, most)) throw fail(`${size} bytes in one piece, of which it has ${Math.min(bound, most)}`);
    const address = this.room(size);
    const buffer = this.device.createBuffer({size, usage: USAGE.storage | USAGE.copySource | USAGE.copyTarget});
    const made = {address, size, buffer, isIdle: false};
    this.blocks.splice(this.behind(address), 0, made);
    return made;
  }

  /** Addresses that nobody has: behind the last, else the first gap. */
  room(size) {
    let at = ALIGN;
    const last = this.blocks.at(-1);
    if (last !== undefined && last.address + last.size + size <= SPACE) return last.address + last.size;
    for (const each of this.blocks) {
      if (each.address - at >= size) return at;
      at = each.address + each.size;
    }
    if (at + size > SPACE) throw fail(`out of addresses: ${size} bytes`);
    return at;
  }

  /** How many blocks begin at an address or before it. */
  behind(address) {
    let [low, high] = [0, this.blocks.length];
    while (low < high) {
      const middle = low + high >> 1;
      if (this.blocks[middle].address <= address) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(address) {
    const found = this.blocks[this.behind(address) - 1];
    if (found === undefined || address > found.address + found.size) throw fail(`nothing lies at ${address}`);
    return found;
  }

  free(block) {
    if (block.isIdle) throw fail(`what lies at ${block.address} is free already`);
    block.isIdle = true;
    this.used -= block.size;
    this.kept += block.size;
    this.idle.push(block);
    while (this.kept > this.most) this.drop(this.idle.shift());
  }

  drop(block) {
    this.kept -= block.size;
    this.blocks.splice(this.behind(block.address) - 1, 1);
    block.buffer.destroy();
    this.destroyed++;
  }
}

export class WebGpu {
  constructor(device) {
    this.device = device;
    this.memory = new Memory(device);
    this.modules = [undefined]; // by their numbers
    this.kernels = [undefined];
    this.numbers = new Int32Array(NUMBERS / 4);
    this.taken = 0; // bytes of them
    this.uniform = device.createBuffer({size: NUMBERS, usage: USAGE.uniform | USAGE.copyTarget});
    this.checks = new Set();
    this.launches = this.twins = 0;
    device.lost.then(({message}) => {
      this.gone = message || 'no reason was given';
    });
  }

  /** Throws where the device is lost. */
  alive() {
    if (this.gone !== undefined) throw fail(`the device is lost: ${this.gone}`);
  }

  alloc(size) {
    return this.watch('out-of-memory', '', () => this.memory.alloc(size)).address;
  }

  free(address) {
    this.memory.free(this.memory.at(address));
  }

  /** Writes bytes of the host, and keeps no reference to them. */
  write(to, data) {
    const target = this.memory.at(to);
    const whole = up(data.length, 4);
    const words = whole === data.length ? data : Uint8Array.from({length: whole}, (_, i) => data[i]);
    this.flush();
    this.device.queue.writeBuffer(target.buffer, this.words(to - target.address), words);
  }

  copy(from, to, size) {
    const [source, target] = [from, to].map((each) => this.memory.at(each));
    this.passing(source, (buffer) => this.commands().copyBufferToBuffer(
      buffer, this.words(from - source.address), target.buffer, this.words(to - target.address), up(size, 4)),
    source === target);
  }

  words(at) {
    if (at % 4 === 0) return at;
    throw fail('its memory is of words of 4 bytes, and a copy begins within one');
  }

  /** When all is done that was asked for. */
  drain() {
    this.flush();
    return this.device.queue.onSubmittedWorkDone();
  }

  load(called, text) {
    const module = this.watch('validation', `kernel '${called}' is refused: `,
      () => this.device.createShaderModule({code: text}));
    const kinds = [...text.matchAll(/@binding\(\d+\) var<([a-z_, ]+)>/g)].map(([, kind]) => kind);
    return this.modules.push({module, kinds, called}) - 1;
  }

  unload(number) {
    this.modules[number] = undefined;
    this.kernels.forEach((each, at) => {
      if (each?.owner === number) this.kernels[at] = undefined;
    });
  }

  kernel(number, entryPoint) {
    const {module, kinds, called} = this.modules[number];
    const type = (kind) => kind === 'uniform' ? {type: 'uniform', hasDynamicOffset: true}
      : {type: kind === 'storage, read' ? 'read-only-storage' : 'storage'};
    const entries = kinds.map((kind, binding) => ({binding, visibility: COMPUTE, buffer: type(kind)}));
    const made = this.watch('validation', `kernel '${called}' is refused: `, () => {
      const layout = this.device.createBindGroupLayout({entries});
      const whole = this.device.createPipelineLayout({bindGroupLayouts: [layout]});
      const pipeline = this.device.createComputePipeline({layout: whole, compute: {module, entryPoint}});
      return {layout, pipeline, kinds, called, owner: number, groups: new Map(), seen: 0};
    });
    return this.kernels.push(made) - 1;
  }

  /** So many blocks of a kernel in three dimensions; `given` is numbers, and memory as `{at}`. */
  launch(number, grid, given) {
    const kernel = this.kernels[number];
    const bound = [];
    const numbers = [...grid, ...given.map((each) => {
      if (typeof each === 'number') return each;
      const block = this.memory.at(each.at);
      bound.push(block);
      return this.words(each.at - block.address) / 4;
    })];
    const total = grid[0] * grid[1] * grid[2];
    const large = [...numbers, total].find((each) => each !== (each | 0));
    if (large !== undefined) throw fail(`kernel '${kernel.called}': a size of more than 32 bits: ${large}`);
    this.dispatch(kernel, bound, numbers, total);
    this.launches++;
  }

  /** Launches a 1-D grid of blocks, folded into 2-D. Memory that is read and written is read from a copy. */
  dispatch(kernel, bound, numbers, total) {
    const written = new Set();
    bound.forEach((block, i) => {
      if (kernel.kinds[i] === 'storage, read') return;
      if (written.has(block)) throw fail(`kernel '${kernel.called}': two results lie in one piece of memory`);
      written.add(block);
    });
    const twins = [];
    const blocks = bound.map((block, i) => {
      if (kernel.kinds[i] !== 'storage, read' || !written.has(block)) return block;
      twins.push(this.memory.alloc(block.size));
      this.commands().copyBufferToBuffer(block.buffer, 0, twins.at(-1).buffer, 0, block.size);
      return twins.at(-1);
    });
    this.twins += twins.length;
    const size = up(4 * numbers.length, ALIGN);
    if (this.taken + size > NUMBERS) this.flush();
    this.numbers.set(numbers, this.taken / 4);
    this.encoder ??= this.device.createCommandEncoder();
    this.pass ??= this.encoder.beginComputePass();
    this.pass.setPipeline(kernel.pipeline);
    this.pass.setBindGroup(0, this.group(kernel, blocks, size), [this.taken]);
    this.pass.dispatchWorkgroups(Math.min(total, LINE), Math.ceil(total / LINE));
    this.taken += size;
    twins.forEach((each) => this.memory.free(each));
  }

  /** What a kernel is bound to; the same in the next run, mostly. */
  group(kernel, blocks, size) {
    if (kernel.seen !== this.memory.destroyed) kernel.groups.clear();
    kernel.seen = this.memory.destroyed;
    const key = blocks.map((each) => each.address).join();
    if (!kernel.groups.has(key)) {
      const resources = blocks.map(({buffer}) => ({buffer}));
      resources.push({buffer: this.uniform, offset: 0, size});
      const entries = resources.map((resource, binding) => ({binding, resource}));
      kernel.groups.set(key, this.device.createBindGroup({layout: kernel.layout, entries}));
    }
    return kernel.groups.get(key);
  }

  /** `use(buffer)` of a block, or of a copy of it. */
  passing(block, use, isCopied) {
    if (!isCopied) {
      use(block.buffer);
      return;
    }
    const twin = this.memory.alloc(block.size);
    this.commands().copyBufferToBuffer(block.buffer, 0, twin.buffer, 0, block.size);
    use(twin.buffer);
    this.memory.free(twin);
  }

  /** Where commands are recorded that are no launches. */
  commands() {
    this.pass?.end();
    this.pass = undefined;
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  /** Submits the recorded commands to the queue. */
  flush() {
    if (this.encoder === undefined) return;
    this.pass?.end();
    const {encoder, device, taken} = this;
    this.pass = this.encoder = undefined;
    this.taken = 0;
    this.watch('validation', '', () => {
      if (taken > 0) device.queue.writeBuffer(this.uniform, 0, this.numbers, 0, taken / 4);
      device.queue.submit([encoder.finish()]);
    });
  }

  /** A copy of memory as it is after all that was asked for before. */
  async read(address, size) {
    const block = this.memory.at(address);
    const whole = up(size, 4);
    const landing = this.device.createBuffer({size: whole, usage: USAGE.mapRead | USAGE.copyTarget});
    this.commands().copyBufferToBuffer(block.buffer, this.words(address - block.address), landing, 0, whole);
    this.flush();
    try {
      await landing.mapAsync(READ);
      return new Uint8Array(landing.getMappedRange().slice(0, size));
    } catch (error) {
      throw fail(this.gone === undefined ? error.message : `the device is lost: ${this.gone}`);
    } finally {
      landing.destroy();
    }
  }

  /** Does something whose errors the device tells later, to settle(). */
  watch(filter, before, body) {
    this.device.pushErrorScope(filter);
    try {
      return body();
    } finally {
      const check = this.device.popErrorScope().then((error) => {
        this.checks.delete(check);
        if (error) this.fault ??= fail(`${before}${error.message}`);
      }, () => this.checks.delete(check)); // the device is lost, which is told elsewhere
      this.checks.add(check);
    }
  }

  /** Bytes in use. */
  used() {
    return this.memory.used;
  }

  /** How many pieces of memory it has, with those that wait for their next use. */
  pieces() {
    return this.memory.blocks.length;
  }

  /** Waits for what the device has to say; throws the first of it. */
  async settle() {
    await Promise.all(this.checks);
    const {fault} = this;
    this.fault = undefined;
    if (fault !== undefined) throw fault;
  }
}

/** What was given, where it is the address of a module that has it as `default`. */
async function imported(given) {
  const isModule = typeof given === 'string' || given instanceof URL;
  return isModule ? (await import(/* webpackIgnore: true */ given)).default : given;
}

/** A device of the engine, or of the argument: a GPUDevice, an equivalent of navigator.gpu, or a module
 * of either. Throws a DeviceError that says what is missing. */
export async function openDevice(given) {
  const found = await imported(given);
  if (found?.createComputePipeline !== undefined) return new WebGpu(found);
  const gpu = found ?? globalThis.navigator?.gpu;
  if (gpu === undefined) {
    const why = globalThis.isSecureContext === false ? 'the page is not from https: or this machine'
      : 'it has no navigator.gpu, and init({webgpu}) gave none';
    throw fail(`this engine has no WebGPU here: ${why}`);
  }
  const adapter = await gpu.requestAdapter({powerPreference: 'high-performance'});
  if (!adapter) throw fail('WebGPU has no adapter: no graphics processor that the engine takes');
  const names = ['maxBufferSize', 'maxStorageBufferBindingSize', 'maxStorageBuffersPerShaderStage',
    'maxComputeWorkgroupStorageSize', 'maxComputeInvocationsPerWorkgroup', 'maxComputeWorkgroupSizeX'];
  const requiredLimits = Object.fromEntries(names.map((name) => [name, adapter.limits[name]]));
  try {
    return new WebGpu(await adapter.requestDevice({requiredLimits}));
  } catch (error) {
    throw fail(`the adapter gives no device: ${error.message}`);
  }
}
