// Runs one model by one engine on given inputs, in Node or in a page: benchmarks/web.py says how.

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};

/** The largest difference of two arrays as a share of the largest element, or of 1. */
function difference(got, wanted) {
  let most = 1;
  let worst = 0;
  for (let i = 0; i < wanted.length; i++) {
    most = Math.max(most, Math.abs(Number(wanted[i])));
    const by = Math.abs(Number(got[i]) - Number(wanted[i]));
    if (!(by <= worst)) worst = by;
  }
  return got.length === wanted.length ? worst / most : Infinity;
}

async function ekiden(url, read, id, feeds, threads) {
  const {init, load, Tensor} = await import(`${url}/index.js`);
  await init({threads});
  const model = await load(await read(`${id}.eki`));
  const tensors = feeds.map(({name, dtype, shape, data}) => [name, new Tensor(dtype, shape, data)]);
  const inputs = Object.fromEntries(tensors);
  return async () => [await model.run(inputs)].flat(Infinity).map((each) => each.data);
}

async function onnxruntime(url, read, id, feeds, threads) {
  const ort = await import(url);
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = 'error';
  const options = {executionProviders: ['wasm'], graphOptimizationLevel: 'all'};
  const session = await ort.InferenceSession.create(await read(`${id}.onnx`), options);
  const tensors = feeds.map(({name, dtype, shape, data}) => [name, new ort.Tensor(dtype, data, shape)]);
  const inputs = Object.fromEntries(tensors);
  return async () => {
    const results = await session.run(inputs);
    return session.outputNames.map((name) => results[name].data);
  };
}

/** Milliseconds: of the clock, or of all threads of a process of Node, which others lengthen little. */
const CLOCKS = {
  wall: () => performance.now(),
  cpu: () => {
    const {user, system} = process.cpuUsage();
    return (user + system) / 1000;
  },
};

/** {id, median, least, difference}: `engine` is "ekiden" or "onnxruntime", `url` where its package is,
 * `read(name)` gives the bytes of a file, `budget` how many milliseconds to spend,
 * `threads` how many share a loop, `clock` one of CLOCKS. */
export async function measure({engine, url, id, budget, threads, clock}, read) {
  const now = CLOCKS[clock];
  const {inputs, outputs} = JSON.parse(new TextDecoder().decode(await read(`${id}.json`)));
  const array = async (name, dtype) => new ARRAYS[dtype]((await read(name)).slice().buffer);
  const feeds = await Promise.all(inputs.map(
    async (each, i) => ({...each, data: await array(`${id}.in${i}`, each.dtype)})));
  const run = await {ekiden, onnxruntime}[engine](url, read, id, feeds, threads);
  const found = await run();
  let worst = 0;
  for (const [i, {dtype}] of outputs.entries()) {
    worst = Math.max(worst, difference(found[i], await array(`${id}.out${i}`, dtype)));
  }
  const first = performance.now();
  await run();
  const turns = Math.max(1, Math.min(1000, Math.ceil(4 / (performance.now() - first + 1e-3))));
  const times = [];
  const end = performance.now() + budget;
  do { // clocks of pages are coarse: several runs at a time
    const begin = now();
    for (let i = 0; i < turns; i++) await run();
    times.push((now() - begin) / turns);
  } while (times.length < 5 || performance.now() < end);
  times.sort((a, b) => a - b);
  return {id, median: times[times.length >> 1], least: times[0], difference: worst};
}
