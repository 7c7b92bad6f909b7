// Workers: how many threads there may be, and threads of the runtime.

import {errorOf} from './errors.js';

const MOST_THREADS = 64, MOST_BY_ITSELF = 8;
export const IS_NODE = typeof process !== 'undefined' && process.versions?.node !== undefined;

/** Why there can be no threads here; undefined where there can. */
function whyOne() {
  if (typeof SharedArrayBuffer === 'undefined' || globalThis.crossOriginIsolated === false) {
    return 'memory cannot be shared: the page is not cross-origin isolated (COOP and COEP headers)';
  }
  return IS_NODE || typeof Worker !== 'undefined' ? undefined : 'a worker here cannot have workers';
}

/** The requested number of threads, and the reason if it is one. */
export async function wantedThreads(asked) {
  if (asked !== undefined && !(Number.isInteger(asked) && asked >= 1 && asked <= MOST_THREADS)) {
    throw errorOf('ValueError', `threads: 1 to ${MOST_THREADS} expected, got ${asked}`);
  }
  const why = asked === 1 ? 'one thread was asked for' : whyOne();
  if (why === undefined) {
    const cores = globalThis.navigator?.hardwareConcurrency
      ?? (await import(/* webpackIgnore: true */ 'node:os')).availableParallelism();
    const n = asked ?? Math.min(cores, MOST_BY_ITSELF);
    return {n, why: n === 1 ? 'there is one core' : undefined};
  }
  if (asked > 1) throw errorOf('RuntimeError', `threads: ${asked} were asked for, but ${why}`);
  return {n: 1, why};
}

/** Starts a worker from a file of this package, which receives `given`; `fail` is called with its errors. */
export async function startWorker(file, given, fail) {
  const url = new URL(file, import.meta.url);
  if (IS_NODE) {
    const {Worker: NodeWorker} = await import(/* webpackIgnore: true */ 'node:worker_threads');
    const made = new NodeWorker(url, {workerData: given, execArgv: []});
    made.on('error', fail);
    made.unref(); // it keeps no program alive
    return {post: (message, moved) => made.postMessage(message, moved), stop: () => made.terminate()};
  }
  const made = new Worker(url, {type: 'module'});
  made.onerror = (event) => fail(new Error(event.message ?? 'a worker did not start'));
  if (given !== undefined) made.postMessage(given);
  return {post: (message, moved) => made.postMessage(message, moved), stop: () => made.terminate()};
}

/** Starts workers, and waits until each is there. */
export async function startThreads(of, wasm, n) {
  let failure;
  const stops = [];
  for (let number = 0; number < n - 1; number++) {
    const {stop} = await startWorker('./thread.js', of.worker(wasm, number), (error) => {
      failure ??= error;
    });
    stops.push(stop);
  }
  while (of.c.ek_web_workers() < n - 1) {
    if (failure !== undefined) {
      stops.forEach((stop) => stop());
      throw errorOf('RuntimeError', `threads: a worker did not start: ${failure.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  of.c.ek_num_threads(n);
}

/** Whether this thread may wait for another: memory can be shared, and it is not that of a page. */
export function mayBlock() {
  return whyOne() === undefined && (IS_NODE || typeof WorkerGlobalScope !== 'undefined');
}
