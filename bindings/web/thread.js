// A worker that is a thread of the runtime, in browsers and in Node.

import {Runtime} from './runtime.js';
import {IS_NODE} from './threads.js';

if (IS_NODE) {
  const {workerData} = await import('node:worker_threads');
  await new Runtime().serve(workerData);
} else {
  globalThis.onmessage = (event) => new Runtime().serve(event.data);
}
