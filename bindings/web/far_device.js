// A device of WebGPU that another thread has, which this one waits for: where WebAssembly cannot wait for
// promises. device_thread.js is the other side.

import {errorOf} from './errors.js';
import {startWorker} from './threads.js';

/** The words in front of an answer, in memory that both threads have. */
export const ANSWER = {state: 0, number: 1, words: 4};
export const STATES = {waiting: 0, number: 1, bytes: 2, error: 3};
const LEAST = 1 << 16; // bytes of an answer, such as the text of an error

export class FarDevice {
  isBlocking = true;

  constructor(post) {
    this.post = post;
    this.room(0);
  }

  /** Starts the thread. Throws a DeviceError that names what is missing. */
  static async open(given) {
    let failure;
    const made = new FarDevice(await startWorker('./device_thread.js', undefined, (error) => {
      failure ??= error;
    }).then(({post}) => post));
    made.ask('open', [given === undefined ? given : String(given)]);
    while (Atomics.load(made.head, ANSWER.state) === STATES.waiting) {
      if (failure !== undefined) throw errorOf('DeviceError', `webgpu(0): its thread did not start: ${failure.message}`);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    made.answer();
    return made;
  }

  /** Has memory for an answer of so many bytes. */
  room(size) {
    const wanted = 4 * ANSWER.words + Math.max(size, LEAST);
    if (this.memory?.byteLength >= wanted) return;
    this.memory = new SharedArrayBuffer(wanted);
    this.head = new Int32Array(this.memory, 0, ANSWER.words);
  }

  /** Sends a request without an answer: its error is reported by the next request that has one. */
  tell(name, given, moved = []) {
    this.post({name, given}, moved);
  }

  ask(name, given) {
    Atomics.store(this.head, ANSWER.state, STATES.waiting);
    this.post({name, given, memory: this.memory}, []);
  }

  /** Asks, and waits. */
  wait(name, ...given) {
    this.ask(name, given);
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

  /** The other side looks, with each request. */
  alive() {}

  alloc(size) {
    return this.wait('alloc', size);
  }

  free(address) {
    this.tell('free', [address]);
  }

  write(to, data) {
    const copy = data.slice();
    this.tell('write', [to, copy], [copy.buffer]);
  }

  copy(from, to, size) {
    this.tell('copy', [from, to, size]);
  }

  drain() {
    this.wait('drain');
  }

  load(called, text) {
    return this.wait('load', called, text);
  }

  unload(number) {
    this.tell('unload', [number]);
  }

  kernel(number, entryPoint) {
    return this.wait('kernel', number, entryPoint);
  }

  launch(number, grid, given) {
    this.tell('launch', [number, grid, given]);
  }

  read(address, size) {
    this.room(size);
    return this.wait('read', address, size);
  }

  settle() {
    this.wait('settle');
  }

  used() {
    return this.wait('used');
  }

  pieces() {
    return this.wait('pieces');
  }
}
