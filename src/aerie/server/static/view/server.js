// The server's own API: JSON, and completions as streams of events.

import { askForKey, heldKey } from "./key.js";

// An answer that is not an error; a refused key is asked for, and the request sent again.
export async function call(path, options = {}) {
  let answer = await send(path, options);
  while (answer.status === 401) {
    await askForKey(heldKey() !== "");
    answer = await send(path, options);
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function send(path, options) {
  const headers = { ...options.headers };
  if (heldKey()) headers.authorization = `Bearer ${heldKey()}`;
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
}

async function failure(answer) {
  const body = await answer.json().catch(() => null);
  const error = new Error(body?.error?.message ?? `The server answered ${answer.status}.`);
  error.status = answer.status;
  return error;
}

// Events of one completion, until it is done.
export async function* completion(asked, signal) {
  const answer = await call("v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    signal,
    body: JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true } }),
  });
  for await (const { name, data } of events(answer.body)) {
    if (data === "[DONE]") return;
    const body = JSON.parse(data);
    if (body.error) throw new Error(body.error.message);
    yield { name, body };
  }
  throw new Error("The stream ended before its text did.");
}

// Server-sent events: blocks of lines, separated by an empty one.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      yield { name: fields.event ?? "message", data: fields.data };
    }
  }
}
