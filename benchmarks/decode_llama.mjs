// llama.cpp for decode.py, by the package node-llama-cpp: lines {"read": tokens} or {"step": tokens}
// in, the milliseconds of each and the memory of the process out.
//
//     node decode_llama.mjs FOLDER_WITH_node_modules MODEL.gguf THREADS CONTEXT [cpu]
import path from "node:path";
import readline from "node:readline";
import {pathToFileURL} from "node:url";

const [folder, file, threads, contextSize, clock] = process.argv.slice(2);
const module = path.join(path.resolve(folder), "node_modules/node-llama-cpp/dist/index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(module));
const llama = await getLlama({
  gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: Number(threads),
});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({
  contextSize: Number(contextSize), batchSize: 512, threads: Number(threads),
});
const sequence = context.getSequence();
let steps = null;

function now() {
  if (clock !== "cpu") return performance.now();
  const {user, system} = process.cpuUsage();
  return (user + system) / 1000;
}

async function timed(count, work) {
  const times = [];
  for (let n = 0; n < count; n++) {
    const start = now();
    await work();
    times.push(now() - start);
  }
  return times;
}

for await (const line of readline.createInterface({input: process.stdin})) {
  const asked = JSON.parse(line);
  if (asked.read !== undefined) {
    if (steps !== null) await steps.return();
    await sequence.clearHistory();
    const prompt = Array.from({length: asked.read}, () => 300 + Math.floor(Math.random() * 40000));
    steps = sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true});
  }
  const times = await timed(asked.step ?? 1, () => steps.next());
  console.log(JSON.stringify({times, memory: process.memoryUsage().rss}));
}
process.exit(0);
