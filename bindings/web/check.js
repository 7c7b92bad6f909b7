// What the data-driven script cannot express: wrong handles, closed objects, callbacks that throw, memory.
// `node --expose-gc check.js FOLDER`.

import assert from 'node:assert';
import path from 'node:path';
import process from 'node:process';
import * as ekiden from './index.js';

const {Tensor, errors, registry} = ekiden;

async function main(folder) {
  assert.throws(() => registry.get('x'), errors.RuntimeError); // nothing is there yet
  const model = await ekiden.load(path.join(folder, 'scaled.eki'));
  const inputs = {x: new Tensor('float32', [1, 4], [1, 2, 3, 4]), scale: new Tensor('float32', [], [2])};

  registry.register('check.bad', () => {
    throw new TypeError('no number');
  });
  const bad = registry.get('check.bad');
  await assert.rejects(bad.callAsync(1), {kind: 'TypeError', message: 'no number'});
  assert.throws(() => bad.call(Symbol('x')), errors.TypeError);
  assert.throws(() => bad.call({pointer: 12345}), errors.TypeError);
  assert.throws(() => bad.call(2n ** 70n), errors.ValueError);
  assert.throws(() => model.runSync({...inputs, x: model.module}), errors.InputError);
  assert.throws(() => new Tensor('float32', [-1]), errors.ValueError);
  const wrong = new Tensor('float32', [1, 4]);
  wrong.data = new Float64Array(4);
  assert.throws(() => model.runSync({...inputs, x: wrong}), errors.TypeError);
  registry.register('check.nested', (n) => n === 0 ? 0 : 1 + registry.get('check.nested').call(n - 1));
  assert.strictEqual(registry.get('check.nested').call(50), 50);

  const large = new Tensor('float32', [300000, 4]); // memory grows under the views of it
  const [out] = model.runSync({...inputs, x: large});
  assert.strictEqual(out.data.length, 300000 * 4);

  const {runtime} = model.module;
  for (let i = 0; i < 2000; i++) model.runSync(inputs);
  globalThis.gc();
  const [before, heap] = [runtime.c.memory.buffer.byteLength, process.memoryUsage().heapUsed];
  const turns = Number(process.env.EKIDEN_TURNS ?? 20000);
  for (let i = 0; i < turns; i++) {
    model.runSync(inputs);
    try {
      bad.call(1);
    } catch (error) {
      assert(error instanceof errors.TypeError);
    }
  }
  globalThis.gc();
  assert.strictEqual(runtime.c.memory.buffer.byteLength, before, 'memory grows with calls');
  assert(process.memoryUsage().heapUsed - heap < 20e6, 'the heap grows with calls');

  const places = runtime.table.length;
  for (let i = 0; i < 20; i++) (await ekiden.load(path.join(folder, 'scaled.eki'))).close();
  assert(runtime.table.length - places < 200, 'the places of closed models are taken again');

  const {pointer} = model.module;
  assert.throws(() => new ekiden.Func(runtime, pointer).call(1), errors.TypeError);
  const found = model.module.get('main');
  runtime.c.ek_object_retain(found.pointer);
  assert.throws(() => new ekiden.Module(runtime, found.pointer).names(), errors.TypeError);
  runtime.c.ek_object_retain(pointer);
  const main_ = model.module.get('main');
  model.close();
  model.close();
  assert.throws(() => model.runSync(inputs), errors.ValueError);
  assert.strictEqual(main_.call(inputs.x, inputs.scale)[1].data[0], 20); // it keeps its module
  main_.close();
  assert.throws(() => main_.call(), errors.ValueError);
  console.log('right');
}

await main(process.argv[2]);
