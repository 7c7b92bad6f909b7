// llama.cpp for perplexity.py, by the package node-llama-cpp: the tokens of a text as a JSON list in,
// the natural logarithm of each token's probability after those before it out, from the second on.
//
//     node perplexity_llama.mjs FOLDER_WITH_node_modules MODEL.gguf
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const [folder, file] = process.argv.slice(2);
const module = path.join(path.resolve(folder), "node_modules/node-llama-cpp/dist/index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(module));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file});
const tokens = JSON.parse(fs.readFileSync(0, "utf8"));
const context = await model.createContext({contextSize: tokens.length + 8, batchSize: 64});
const sequence = context.getSequence();
const found = new Array(tokens.length - 1);
// of a result the two logits alone that are needed, and the sum of exp(logit - greatest): a map of a whole
// vocabulary is made of it in seconds for each token where that is large
const options = {temperature: 1, topK: 0, topP: 1, minP: 0};
const asked = (next) => ({options, totalLogitWeight: true, logits: {filter: {tokens: [next], includeTop: 1}}});
const step = 64;
for (let start = 0; start + 1 < tokens.length; start += step) {
  const some = tokens.slice(start, Math.min(start + step, tokens.length - 1));
  const input = some.map((token, n) => [token, {generateNext: asked(tokens[start + n + 1])}]);
  await sequence.controlledEvaluate(input, {
    onTokenResult(index, {next}) {
      const greatest = Math.max(...next.logits.values());
      const logit = next.logits.get(tokens[start + index + 1]);
      found[start + index] = logit - greatest - Math.log(next.totalLogitWeight);
    },
  });
}
console.log(JSON.stringify(found));
process.exit(0);
