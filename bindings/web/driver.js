// Driver of "webgpu" for the runtime: calls a device in this thread, or by proxy in a worker.

import {DeviceProxy} from './device_proxy.js';
import {CAN_SUSPEND} from './modules.js';
import {mayBlock} from './threads.js';
import {fail, openDevice} from './webgpu.js';

// As runtime/web/ek_web_device.c numbers them.
const REQUESTS = ['alloc', 'free', 'copy', 'synchronize', 'load', 'unload', 'kernel', 'launch'];
const DONE = 0, WAIT = 1;
const CPU = 1;
const WORDS = 5; // of a request
const LAUNCH = {args: 48, count: 52};
const LAUNCH_ARG = {size: 24, memory: 0, number: 8, bytes: 16}; // ek_launch_arg

class Driver {
  constructor(runtime, device) {
    this.runtime = runtime;
    this.device = device;
  }

  /** Whether what a device computed is there when it is asked for; else it comes as a promise. */
  get isBlocking() {
    return this.device.isBlocking === true;
  }

  /** An entry of the device table. */
  request(what, id, at) {
    if (id !== 0) throw fail(`there is one device, got number ${id}`);
    this.device.alive();
    const {view} = this.runtime;
    const words = Array.from({length: WORDS}, (_, i) => view.getUint32((at >>> 0) + 4 * i, true));
    return this[REQUESTS[what]](...words) ?? DONE;
  }

  put(at, value) {
    this.runtime.view.setUint32(at, value, true);
  }

  alloc(size, out) {
    this.put(out, this.device.alloc(size));
  }

  free(address) {
    this.device.free(address);
  }

  copy(from, fromType, to, toType, size) {
    const {runtime, device} = this;
    if (toType === CPU) return this.wait(() => device.read(from, size), (bytes) => runtime.u8.set(bytes, to));
    if (fromType !== CPU) return device.copy(from, to, size);
    const {u8} = runtime;
    device.write(to, runtime.isShared ? u8.slice(from, from + size) : u8.subarray(from, from + size));
    return DONE;
  }

  synchronize() {
    return this.wait(() => this.device.drain(), () => {});
  }

  /** Has `use` get what comes, where this run can wait for it. */
  wait(begin, use) {
    if (this.isBlocking) {
      use(begin());
      return DONE;
    }
    if (!this.runtime.canWait) {
      throw fail('this run reads what the device computed before it ends, for a check, a size or a '
        + `condition: ${this.runtime.whyNoWait}`);
    }
    this.waiting = async () => use(await begin());
    return WAIT;
  }

  load(format, name, code, size, out) {
    const {runtime} = this;
    this.put(out, this.device.load(runtime.cstringAt(name), runtime.text(code, size)));
  }

  unload(number) {
    this.device.unload(number);
  }

  kernel(number, name, out) {
    this.put(out, this.device.kernel(number, this.runtime.cstringAt(name)));
  }

  launch(number, at) {
    const {view} = this.runtime;
    const whole = (place) => Number(view.getBigInt64(place, true));
    const args = view.getUint32(at + LAUNCH.args, true);
    const given = Array.from({length: view.getInt32(at + LAUNCH.count, true)}, (_, i) => {
      const arg = args + LAUNCH_ARG.size * i;
      if (view.getInt32(arg + LAUNCH_ARG.bytes, true) !== 0) return whole(arg + LAUNCH_ARG.number);
      return {at: view.getUint32(arg + LAUNCH_ARG.memory, true)};
    });
    this.device.launch(number, [0, 8, 16].map((by) => whole(at + by)), given);
  }

  /** Fills bytes with memory of the device; a promise where they come later. */
  fetch(bytes, from) {
    const bytesRead = this.device.read(from, bytes.length);
    if (!this.isBlocking) return bytesRead.then((made) => bytes.set(made));
    bytes.set(bytesRead);
    return undefined;
  }

  /** Throws the device's error for earlier requests: in a promise unless it is blocking. */
  settle() {
    return this.device.settle();
  }
}

/** Opens a driver for a runtime. If WebAssembly cannot suspend and the device was not passed as an object, the
 * device lives in a worker, on which this thread blocks, if it may. */
export async function open(runtime, given) {
  const isObject = given !== undefined && typeof given !== 'string' && !(given instanceof URL);
  const isInWorker = !CAN_SUSPEND && !isObject && mayBlock();
  return new Driver(runtime, await (isInWorker ? DeviceProxy.open(given) : openDevice(given)));
}
