// Proxy of a WebGPU device in a worker: this thread blocks on its answers, since WebAssembly cannot wait for
// promises here. device_thread.js is the worker.

import {errorOf} from './errors.js';
import {startWorker} from './threads.js';

/** The header words of an answer, in memory shared by both threads. */
export const ANSWER = {state: 0, number: 1, words: 4};
export const STATES = {waiting: 0, number: 1, bytes: 2, error: 3};
const MIN_ANSWER_BYTES = 1 << 16; // enough for the text of an error

export class DeviceProxy {
  isBlocking = true;

  constructor(post) {
    this.post = post;
    this.reserve(0);
  }

  /** Starts the worker. Throws a DeviceError that names what is missing. */
  static async open(args) {
    let failure;
    const proxy = new DeviceProxy(await startWorker('./device_thread.js', undefined, (error) => {
      failure ??= error;
    }).then(({post}) => post));
    proxy.request('open', [args === undefined ? args : String(args)]);
    while (Atomics.load(proxy.head, ANSWER.state) === STATES.waiting) {
      if (failure !== undefined) throw errorOf('DeviceError', `webgpu(0): its thread did not start: ${failure.message}`);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    proxy.answer();
    return proxy;
  }

  /** Ensures that the shared memory holds an answer of `size` bytes. */
  reserve(size) {
    const bytes = 4 * ANSWER.words + Math.max(size, MIN_ANSWER_BYTES);
    if (this.memory?.byteLength >= bytes) return;
    this.memory = new SharedArrayBuffer(bytes);
    this.head = new Int32Array(this.memory, 0, ANSWER.words);
  }

  /** Sends a request without an answer: its error is reported by the next request that has one. */
  send(name, args, moved = []) {
    this.post({name, args}, moved);
  }

  request(name, args) {
    Atomics.store(this.head, ANSWER.state, STATES.waiting);
    this.post({name, args, memory: this.memory}, []);
  }

  /** Sends a request and blocks until its answer. */
  call(name, ...args) {
    this.request(name, args);
    Atomics.wait(this.head, ANSWER.state, STATES.waiting);
    return this.answer();
  }

  answer() {
    const [state, number] = this.head;
    if (state === STATES.number) return number >>> 0;
    const bytes = new Uint8Array(this.memory, 4 * ANSWER.words, number).slice();
    if (state === STATES.bytes) return bytes;
    const {kind, message} = JSON.parse(new TextDecoder().decode(bytes));
    throw errorOf(kind, message);
  }

  /** Does nothing: the worker checks its device at each request. */
  alive() {}

  alloc(size) {
    return this.call('alloc', size);
  }

  free(address) {
    this.send('free', [address]);
  }

  write(to, data) {
    const copy = data.slice();
    this.send('write', [to, copy], [copy.buffer]);
  }

  copy(from, to, size) {
    this.send('copy', [from, to, size]);
  }

  drain() {
    this.call('drain');
  }

  load(called, text) {
    return this.call('load', called, text);
  }

  unload(number) {
    this.send('unload', [number]);
  }

  kernel(number, entryPoint) {
    return this.call('kernel', number, entryPoint);
  }

  launch(number, grid, args) {
    this.send('launch', [number, grid, args]);
  }

  read(address, size) {
    this.reserve(size);
    return this.call('read', address, size);
  }

  settle() {
    this.call('settle');
  }

  used() {
    return this.call('used');
  }

  pieces() {
    return this.call('pieces');
  }
}
