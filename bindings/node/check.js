'use strict';
// What the script in data cannot say: calls on other threads, callbacks from them, memory.
// `node --expose-gc check.js FOLDER`.

const assert = require('node:assert');
const path = require('node:path');
const ekiden = require('.');

async function main(folder) {
  const model = ekiden.Model.load(path.join(folder, 'scaled.eki'));
  const inputs = {
    x: new ekiden.Tensor('float32', [1, 4], [1, 2, 3, 4]),
    scale: new ekiden.Tensor('float32', [], [2]),
  };
  const results = await Promise.all(Array.from({length: 50}, () => model.run(inputs)));
  assert(results.every(([, sum]) => sum.data[0] === 20));

  ekiden.registry.register('check.twice', (x) => 2 * x);
  const twice = ekiden.registry.get('check.twice');
  assert.deepStrictEqual(await Promise.all([1, 2, 3].map((x) => twice.callAsync(x))), [2, 4, 6]);
  ekiden.registry.register('check.bad', () => {
    throw new TypeError('no number');
  });
  const bad = ekiden.registry.get('check.bad');
  await assert.rejects(bad.callAsync(1), {kind: 'TypeError', message: 'no number'});
  assert.throws(() => bad.call(1), {kind: 'TypeError', message: 'no number'});
  assert.throws(() => twice.call(Symbol('x')), {kind: 'TypeError'});

  const large = new ekiden.Tensor('float32', [4096, 4]);
  for (let i = 0; i < 200; i++) {
    const [out] = await model.run({...inputs, x: large});
    assert.strictEqual(out.data.length, 4096 * 4);
  }
  for (let i = 0; i < 2000; i++) model.runSync(inputs);
  globalThis.gc();
  await new Promise((resolve) => setImmediate(resolve));
  const before = process.memoryUsage().rss;
  for (let i = 0; i < 20000; i++) model.runSync(inputs);
  globalThis.gc();
  assert(process.memoryUsage().rss - before < 40e6, 'memory grows with calls');

  model.close();
  model.close();
  assert.throws(() => model.runSync(inputs), {kind: 'ValueError', message: /closed/});
  console.log('right');
}

main(process.argv[2]);
