// Vercel's AI SDK, over both APIs: runs the cells and prints what came of each, as one line of JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import assert from "node:assert/strict";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.FOLIOT_BASE, apiKey: process.env.FOLIOT_KEY });
const Judgement = z.object({ verdict: z.string(), points: z.number() });

function cells(api) {
  const model = (name) => (api === "chat" ? openai.chat(name) : openai.responses(name));
  const ask = (name, more = {}) => ({ model: model(name), prompt: "hello", maxRetries: 0, ...more });
  const weather = (asked) => ({
    get_weather: tool({
      description: "The weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => { asked.push(city); return "rain"; },
    }),
  });
  const gathered = async (options) => {
    let failed;
    const result = streamText({ ...options, onError: ({ error }) => { failed = error; } });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    if (failed) throw failed;
    return text;
  };
  return {
    plain: async () => assert.equal((await generateText(ask("echo"))).text, "You said hello."),
    stream: async () => assert.equal(await gathered(ask("echo")), "You said hello."),
    schema: async () => {
      const { output } = await generateText(ask("shaper", { output: Output.object({ schema: Judgement }) }));
      assert.deepEqual(output, { verdict: "fine", points: 3 });
    },
    tools: async () => {
      const asked = [];
      const options = { tools: weather(asked), stopWhen: stepCountIs(5) };
      assert.equal((await generateText(ask("planner", options))).text, "Both are known.");
      assert.deepEqual(asked.sort(), ["Oslo", "Rome"]);
      assert.equal(await gathered(ask("planner", options)), "Both are known.");
    },
    "own tools": async () => {
      assert.ok((await generateText(ask("clerk"))).text.endsWith("It is 5."));
      assert.ok((await gathered(ask("clerk"))).endsWith("It is 5."));
    },
    history: async () => {
      const messages = [
        { role: "user", content: "hello" },
        { role: "assistant", content: "Yes." },
        { role: "user", content: "more" },
      ];
      const { text } = await generateText({ model: model("rememberer"), messages, maxRetries: 0 });
      assert.equal(text, "First hello, now more.");
    },
    errors: async () => {
      await assert.rejects(generateText(ask("nobody")), (error) => {
        assert.ok(APICallError.isInstance(error));
        assert.equal(error.statusCode, 404);
        assert.match(error.message, /does not exist/);
        return true;
      });
    },
  };
}

const told = {};
for (const api of ["chat", "responses"])
  for (const [feature, cell] of Object.entries(cells(api)))
    try {
      await cell();
      told[`${api}.${feature}`] = "right";
    } catch (error) {
      told[`${api}.${feature}`] = `${error.name}: ${error.message}`.slice(0, 300);
    }
const home = createRequire(import.meta.url).resolve("ai/package.json");
const { version } = JSON.parse(readFileSync(home, "utf8"));
console.log(JSON.stringify({ client: "vercel-ai", version, cells: told }));
