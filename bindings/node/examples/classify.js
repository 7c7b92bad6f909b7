'use strict';
// Says what files contain: `node classify.js FOLDER FILE ...`, where the folder is what
// `python examples/python/classify.py prepare FOLDER` writes.

const {readFile} = require('node:fs/promises');
const path = require('node:path');
const {Model, Tensor} = require('..');

const BLOCK = 4096;
const isSpace = (byte) => byte === 32 || (byte >= 9 && byte <= 13);

/** The first bytes of a file and its last ones, without the white space around it. */
function features(data, [begin, end, padding]) {
  const head = data.subarray(0, BLOCK);
  const first = head.findIndex((byte) => !isSpace(byte));
  const last = data.subarray(Math.max(0, data.length - BLOCK));
  const kept = last.findLastIndex((byte) => !isSpace(byte)) + 1;
  const tail = last.subarray(Math.max(0, kept - end), kept);
  const row = new Int32Array(begin + end).fill(padding);
  if (first >= 0) row.set(head.subarray(first, first + begin));
  row.set(tail, begin + end - tail.length);
  return row;
}

async function main(folder, names) {
  const [first, ...labels] = (await readFile(path.join(folder, 'magika.txt'), 'utf8')).split('\n');
  const sizes = first.split(' ').map(Number);
  const model = Model.load(path.join(folder, 'magika.eki'));
  const [input] = model.inputs();
  for (const name of names) {
    const row = features(await readFile(name), sizes);
    const {data: scores} = await model.run({[input]: new Tensor('int32', [1, row.length], row)});
    const best = scores.indexOf(scores.reduce((a, b) => Math.max(a, b)));
    console.log(`${name}: ${labels[best]} ${(100 * scores[best]).toFixed(1)} %`);
  }
  model.close();
}

main(process.argv[2], process.argv.slice(3));
