// A worker that has a device of WebGPU for a thread that waits for it: far_device.js is the other side.

import {ANSWER, STATES} from './far_device.js';
import {IS_NODE} from './threads.js';
import {openDevice} from './webgpu.js';

let device;
let fault; // of what nobody waited for
let last = Promise.resolve();

async function open(given) {
  device = await openDevice(given);
}

async function run(name, given) {
  if (name === 'open') return open(...given);
  device.alive();
  return device[name](...given);
}

/** Writes an answer, and wakes who waits for it. */
function say(memory, state, number, bytes) {
  const head = new Int32Array(memory, 0, ANSWER.words);
  if (bytes !== undefined) new Uint8Array(memory).set(bytes, 4 * ANSWER.words);
  head[ANSWER.number] = number;
  Atomics.store(head, ANSWER.state, state);
  Atomics.notify(head, ANSWER.state);
}

function sayError(memory, error) {
  const {kind = 'DeviceError', message} = error;
  const most = memory.byteLength - 4 * ANSWER.words;
  const text = JSON.stringify({kind, message: String(message).slice(0, most >> 3)});
  const bytes = new TextEncoder().encode(text);
  say(memory, STATES.error, bytes.length, bytes);
}

async function answer({name, given, memory}) {
  try {
    if (memory !== undefined && fault !== undefined) throw fault;
    const found = await run(name, given);
    if (found instanceof Uint8Array) say(memory, STATES.bytes, found.length, found);
    else if (memory !== undefined) say(memory, STATES.number, found ?? 0);
  } catch (error) {
    if (memory === undefined) {
      fault ??= error;
      return;
    }
    fault = undefined;
    sayError(memory, error);
  }
}

function hear(message) {
  last = last.then(() => answer(message));
}

if (IS_NODE) (await import('node:worker_threads')).parentPort.on('message', hear);
else globalThis.onmessage = ({data}) => hear(data);
