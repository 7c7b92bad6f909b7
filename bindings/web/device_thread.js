// Worker that owns a WebGPU device, for a thread that blocks on its answers (device_proxy.js).

import {ANSWER, STATES} from './device_proxy.js';
import {IS_NODE} from './threads.js';
import {openDevice} from './webgpu.js';

let device;
let deferredError; // of a request without an answer
let queue = Promise.resolve();

async function open(args) {
  device = await openDevice(args);
}

async function run(name, args) {
  if (name === 'open') return open(...args);
  device.alive();
  return device[name](...args);
}

/** Writes an answer, and wakes the waiting thread. */
function writeAnswer(memory, state, number, bytes) {
  const head = new Int32Array(memory, 0, ANSWER.words);
  if (bytes !== undefined) new Uint8Array(memory).set(bytes, 4 * ANSWER.words);
  head[ANSWER.number] = number;
  Atomics.store(head, ANSWER.state, state);
  Atomics.notify(head, ANSWER.state);
}

function writeError(memory, error) {
  const {kind = 'DeviceError', message} = error;
  const capacity = memory.byteLength - 4 * ANSWER.words;
  const text = JSON.stringify({kind, message: String(message).slice(0, capacity >> 3)});
  const bytes = new TextEncoder().encode(text);
  writeAnswer(memory, STATES.error, bytes.length, bytes);
}

async function answer({name, args, memory}) {
  try {
    if (memory !== undefined && deferredError !== undefined) throw deferredError;
    const result = await run(name, args);
    if (result instanceof Uint8Array) writeAnswer(memory, STATES.bytes, result.length, result);
    else if (memory !== undefined) writeAnswer(memory, STATES.number, result ?? 0);
  } catch (error) {
    if (memory === undefined) {
      deferredError ??= error;
      return;
    }
    deferredError = undefined;
    writeError(memory, error);
  }
}

function onMessage(message) {
  queue = queue.then(() => answer(message));
}

if (IS_NODE) (await import('node:worker_threads')).parentPort.on('message', onMessage);
else globalThis.onmessage = ({data}) => onMessage(data);
