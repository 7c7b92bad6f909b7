'use strict';
// What the script in data cannot say: calls on other threads, callbacks from them, memory.
// `node --expose-gc check.js FOLDER`.

const assert = require('node:assert');
const path = require('node:path');
const {Worker, isMainThread, workerData} = require('node:worker_threads');
const ekiden = require('.');

/** A thread that leaves a function behind when it ends. */
function leave(folder) {
  ekiden.registry.register('check.left', (x) => x + 1);
  ekiden.Model.load(path.join(folder, 'scaled.eki'));
  assert.strictEqual(ekiden.registry.get('check.left').call(1), 2);
}

async function checkThatEnds(folder) {
  const code = await new Promise((resolve, reject) => {
    new Worker(__filename, {workerData: folder}).on('exit', resolve).on('error', reject);
  });
  assert.strictEqual(code, 0);
  const left = ekiden.registry.get('check.left');
  assert.throws(() => left.call(1), {kind: 'RuntimeError', message: /ended/});
  await assert.rejects(left.callAsync(1), {kind: 'RuntimeError', message: /ended/});
}

/** Handles of other things, and of nothing. */
function checkHandles(model) {
  const wrong = {kind: 'TypeError'};
  const function_ = model.module.get('main');
  for (const handle of [undefined, {}, 7, model.module.handle]) {
    assert.throws(() => new ekiden.Func(handle).call(1), wrong);
  }
  assert.throws(() => new ekiden.Module(function_.handle).names(), wrong);
  assert.throws(() => new ekiden.Module(model.executable.handle).get('main'), wrong);
  assert.throws(() => new ekiden.Obj(function_.handle).get('x'), {kind: 'AttributeError'});
  function_.close();
  function_.close();
  assert.throws(() => function_.call(), {kind: 'ValueError', message: /closed/});
}

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

  for (let i = 0; i < 20; i++) { // quick by now: made here, with the same results and errors
    assert.strictEqual(await twice.callAsync(i), 2 * i);
    await assert.rejects(bad.callAsync(1), {kind: 'TypeError', message: 'no number'});
    assert(twice.callAsync(1) instanceof Promise);
  }
  ekiden.registry.register('check.closing', () => closing.close());
  const closing = ekiden.registry.get('check.closing');
  await closing.callAsync();
  await assert.rejects(closing.callAsync(), {kind: 'ValueError', message: /closed/});

  const large = new ekiden.Tensor('float32', [4096, 4]);
  for (let i = 0; i < 200; i++) {
    const [out] = await model.run({...inputs, x: large});
    assert.strictEqual(out.data.length, 4096 * 4);
  }
  for (let i = 0; i < 2000; i++) model.runSync(inputs);
  globalThis.gc();
  await new Promise((resolve) => setImmediate(resolve));
  const before = process.memoryUsage().rss;
  const turns = Number(process.env.EKIDEN_TURNS || 20000);
  for (let i = 0; i < turns; i++) model.runSync(inputs);
  globalThis.gc();
  assert(process.memoryUsage().rss - before < 40e6, 'memory grows with calls');

  checkHandles(model);
  await checkThatEnds(folder);
  model.close();
  model.close();
  assert.throws(() => model.runSync(inputs), {kind: 'ValueError', message: /closed/});
  console.log('right');
}

if (isMainThread) main(process.argv[2]);
else leave(workerData);
