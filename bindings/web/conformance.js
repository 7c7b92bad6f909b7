// Runs ../conformance.json: `node conformance.js FOLDER ekiden.wasm`; the folder has it and its models.

import {readFileSync} from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import * as ekiden from './index.js';

const CALLBACKS = {
  double: (x) => x + x,
  echo: (x) => x,
  sum: (x) => x.data.reduce((a, b) => a + b, 0),
  apply: (f, ...args) => f.call(...args),
  fail: () => {
    throw new ekiden.EkidenError('ValueError', 'told to fail');
  },
};

const BIG = new Set(['int64', 'uint64']);

function tensor({tensor: dtype, shape, data}) {
  return new ekiden.Tensor(dtype, shape, BIG.has(dtype) ? data.map(BigInt) : data);
}

function value(json) {
  if (json.tensor) return tensor(json);
  const [[kind, inside]] = Object.entries(json);
  if (kind === 'array') return inside.map(value);
  if (kind === 'callback') return CALLBACKS[inside];
  return kind === 'none' ? undefined : inside;
}

function same(got, wanted) {
  if (Array.isArray(wanted)) {
    return got.length === wanted.length && wanted.every((each, at) => same(got[at], each));
  }
  if (!(wanted instanceof ekiden.Tensor)) return got === wanted;
  const close = (x, at) => Math.abs(Number(x) - Number(wanted.data[at])) <= 1e-6 * 10;
  return got.dtype === wanted.dtype && String(got.shape) === String(wanted.shape) &&
    got.data.length === wanted.data.length && got.data.every(close);
}

function values(entries) {
  return Object.fromEntries(Object.entries(entries).map(([name, each]) => [name, value(each)]));
}

function operations(folder) {
  const things = {};
  const model = (step) => new ekiden.Model(things[step.of]);
  return {
    open: async (step) => {
      things[step.as] = await ekiden.Module.load(path.join(folder, step.path));
    },
    functions: (step) => things[step.of].names(),
    inputs: (step) => model(step).inputs(),
    call: (step) => things[step.of].get(step.function).call(...step.args.map(value)),
    run: (step) => model(step).run(values(step.inputs)),
    run_into: (step) => {
      const outputs = step.outputs.map(value);
      model(step).runInto(values(step.inputs), outputs);
      return outputs;
    },
    overwrite: (step) => {
      const run = things[step.of].get('main');
      const x = new ekiden.Tensor('float32', [step.size], Array.from({length: step.size}, (_, i) => i));
      const results = run.call(x);
      const first = results.map(({data}) => [...data]);
      const isFirst = ({data}, at) => data.every((each, i) => each === first[at][i]);
      const areRight = results.map((result, at) => {
        const isRight = isFirst(result, at);
        result.data.fill(9);
        return isRight;
      });
      return areRight.every(Boolean) && run.call(x).every(isFirst);
    },
    kernels: (step) => model(step).profile(values(step.inputs)).kernels.length,
    threads: (step) => {
      const of = model(step);
      of.numThreads = step.n;
      return of.numThreads;
    },
    device: (step) => Object.values(value(step.value).device),
    global: (step) => ekiden.registry.get(step.name).call(...step.args.map(value)),
    register: (step) => ekiden.registry.register(step.name, CALLBACKS[step.callback]),
    remove: (step) => ekiden.registry.remove(step.name),
    define: (step) => ekiden.define(step.type, Object.fromEntries(step.fields)),
    new: (step) => {
      things[step.as] = ekiden.Obj.create(step.type, ...step.values.map(value));
    },
    type: (step) => things[step.of].typeKey,
    fields: (step) => things[step.of].fields(),
    get: (step) => things[step.of].get(step.field),
    set: (step) => things[step.of].set(step.field, value(step.value)),
    equal: (step) => things[step.a].equals(things[step.b]),
    close: (step) => things[step.of].close(),
  };
}

/** Yields to the event loop, which runs the finalisers of collected objects. */
function turn() {
  return new Promise((resolve) => setImmediate(resolve));
}

async function judge(run, step) {
  try {
    const got = await run[step.op](step);
    if (step.fails) return `gave ${got}`;
    return 'is' in step && !same(got, value(step.is)) ? `gave ${JSON.stringify(got)}` : '';
  } catch (error) {
    const fits = step.fails && error.kind === step.fails.kind &&
      error.message.includes(step.fails.message);
    return fits ? '' : `threw ${error.stack}`;
  }
}

async function main(folder, wasm) {
  await ekiden.init({wasm});
  const script = JSON.parse(readFileSync(path.join(folder, 'conformance.json')));
  let steps = 0;
  for (const {name, steps: list} of script.cases) {
    const run = operations(folder);
    for (const step of list) {
      let why = '';
      for (let i = 0; i < (step.times ?? 1) && !why; i++) {
        why = await judge(run, step);
        if (i % 1000 === 999) await turn();
      }
      if (why) {
        console.log(`${name}: ${JSON.stringify(step)}: ${why}`);
        process.exitCode = 1;
      }
      steps += 1;
    }
  }
  console.log(`${steps} steps`);
}

await main(process.argv[2], process.argv[3]);
