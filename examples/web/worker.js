// The model, off the page's thread.

import {Tensor, abilities, load} from './index.js';

const REPEATS = 5;

async function start() {
  const config = await (await fetch('magika.json')).json();
  const model = await load('model.eki');
  const [input] = model.inputs();
  const {relaxedSimd, threads} = abilities();
  const backend = `${relaxedSimd ? 'relaxed SIMD' : 'SIMD'}, ${threads} thread${threads > 1 ? 's' : ''}`;
  self.onmessage = async ({data: {name, row}}) => {
    try {
      const x = new Tensor('int32', [1, row.length], row);
      const times = [];
      let scores;
      for (let i = 0; i < REPEATS; i++) {
        const begin = performance.now();
        scores = await model.run({[input]: x});
        times.push(performance.now() - begin);
      }
      const rows = Array.from(scores.data, (score, i) => ({label: config.labels[i], score}));
      const best = rows.sort((a, b) => b.score - a.score).slice(0, 4);
      const milliseconds = times.sort((a, b) => a - b)[REPEATS >> 1];
      self.postMessage({name, best, milliseconds, backend});
    } catch (error) {
      self.postMessage({error: `${name}: ${error.message}`});
    }
  };
  self.postMessage({ready: config});
}

start().catch((error) => self.postMessage({error: `The model does not load: ${error.message}`}));
