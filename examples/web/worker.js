// The model, off the page's thread: on the processor, and once more where there is WebGPU.

import {Tensor, abilities, load} from './index.js';

const REPEATS = 5;

/** What a run gives, and the median of its milliseconds. */
async function measured(model, inputs) {
  const times = [];
  let result;
  for (let i = 0; i < REPEATS; i++) {
    const begin = performance.now();
    result = await model.run(inputs);
    times.push(performance.now() - begin);
  }
  return {result, milliseconds: times.sort((a, b) => a - b)[REPEATS >> 1]};
}

async function start() {
  const config = await (await fetch('magika.json')).json();
  const model = await load('model.eki');
  const [input] = model.inputs();
  const {relaxedSimd, threads} = abilities();
  const how = `${relaxedSimd ? 'relaxed SIMD' : 'SIMD'}, ${threads} thread${threads > 1 ? 's' : ''}`;
  const engines = [{model, name: `WebAssembly (${how})`}];
  const missing = await load('gpu.eki').then((model) => {
    engines.push({model, name: 'WebGPU'});
  }, (error) => `no WebGPU: ${error.message}`);
  self.onmessage = async ({data: {name, row}}) => {
    try {
      const inputs = {[input]: new Tensor('int32', [1, row.length], row)};
      const times = [];
      let scores;
      for (const engine of engines) {
        const {result, milliseconds} = await measured(engine.model, inputs);
        scores ??= result;
        times.push(`${milliseconds.toFixed(2)} ms a run on ${engine.name}`);
      }
      if (missing) times.push(missing);
      const rows = Array.from(scores.data, (score, i) => ({label: config.labels[i], score}));
      const best = rows.sort((a, b) => b.score - a.score).slice(0, 4);
      self.postMessage({name, best, times});
    } catch (error) {
      self.postMessage({error: `${name}: ${error.message}`});
    }
  };
  self.postMessage({ready: config});
}

start().catch((error) => self.postMessage({error: `The model does not load: ${error.message}`}));
