// What Magika looks at: the first and last bytes of a file without surrounding white space.

const BLOCK = 4096;
const SPACES = new Set([9, 10, 11, 12, 13, 32]);

/** The model's row of numbers. Throws for a file that is too short to tell. */
export function features(data, {begin, end, padding, least}) {
  if (data.length < least) throw new Error(`it has ${data.length} bytes, ${least} are needed`);
  let first = 0;
  let last = data.length;
  const stop = Math.min(BLOCK, data.length);
  while (first < stop && SPACES.has(data[first])) first++;
  const head = data.slice(first, Math.min(stop, first + begin));
  const from = Math.max(0, data.length - BLOCK);
  while (last > from && SPACES.has(data[last - 1])) last--;
  const tail = data.slice(Math.max(from, last - end), last);
  const row = new Int32Array(begin + end).fill(padding);
  row.set(head, 0);
  row.set(tail, begin + end - tail.length);
  return row;
}
