"use strict";
// Decodes over the server's own API and draws every round. Model text only ever becomes textContent.

const SVG = "http://www.w3.org/2000/svg";
const COLUMN = 128, LINE = 34, WIDTH = 104, HEIGHT = 26, MARGIN = 10;
const at = (id) => document.getElementById(id);

const state = { rounds: [], parts: [], tokens: 0, follows: true, controller: null };

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run(decode);
});
at("race").addEventListener("click", () => run(race));
at("stop").addEventListener("click", () => state.controller && state.controller.abort());
at("round").addEventListener("input", () => {
  const number = Number(at("round").value);
  state.follows = number === state.rounds.length - 1;
  show(number);
});
// A link to /#run shows a decoding at once.
if (location.hash === "#run") run(decode);

function run(job) {
  at("problem").hidden = true;
  working(true);
  job().catch((error) => {
    if (error.name !== "AbortError") complain(error.message);
  }).finally(() => working(false));
}

async function decode() {
  begin(at("prompt").value);
  for await (const { name, body } of completion({ show_rounds: true })) take(name, body);
}

// Neither of the two is shown its rounds: that would slow one of them down.
async function race() {
  const lanes = [];
  at("result").hidden = false;
  for (const [name, speculative] of [["plain", false], ["speculative", true]]) {
    const lane = { name, text: "", tokens: 0, began: performance.now(), seconds: 0 };
    lanes.push(lane);
    for await (const { body } of completion({ speculative })) {
      if (body.usage) lane.tokens = body.usage.completion_tokens;
      else lane.text += body.choices[0].text;
      lane.seconds = (performance.now() - lane.began) / 1000;
      bars("lanes", lanes.map((own) => [own.name, own.seconds, `${own.seconds.toFixed(2)} s`]));
    }
  }
  const [plain, other] = lanes;
  const same = plain.text === other.text ? "the same text" : "texts that differ (a near tie: --numerics exact has none)";
  at("verdict").textContent = `${other.tokens} tokens, ${same}: ${(plain.seconds / other.seconds).toFixed(2)} times plain decoding.`;
}

// Events of one completion, until it is done.
async function* completion(options) {
  state.controller = new AbortController();
  const answer = await fetch("v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    signal: state.controller.signal,
    body: JSON.stringify({
      prompt: at("prompt").value,
      max_tokens: Number(at("tokens").value),
      temperature: Number(at("temperature").value),
      seed: Number(at("seed").value),
      stream: true,
      stream_options: { include_usage: true },
      ...options,
    }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  for await (const { name, data } of events(answer.body)) {
    if (data === "[DONE]") return;
    const body = JSON.parse(data);
    if (body.error) throw new Error(body.error.message);
    yield { name, body };
  }
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
      yield { name: fields.event || "message", data: fields.data };
    }
  }
}

function take(name, body) {
  if (name === "round") {
    state.rounds.push(body);
    at("round").max = state.rounds.length - 1;
    at("round").disabled = false;
    figures();
    if (state.follows) show(state.rounds.length - 1);
  } else if (body.usage) {
    state.tokens = body.usage.completion_tokens;
    figures();
  } else if (body.choices[0].text) {
    add(body.choices[0].text);
  }
}

function begin(prompt) {
  Object.assign(state, { rounds: [], parts: [], tokens: 0, follows: true });
  at("text").replaceChildren(element("span", "prompt", prompt));
  at("tree").replaceChildren();
  at("round").disabled = true;
  figures();
}

function add(text) {
  const number = state.rounds.length - 1;
  const part = element("span", number % 2 ? "part odd" : "part", text);
  part.addEventListener("click", () => {
    state.follows = false;
    show(number);
  });
  state.parts.push({ number, part });
  at("text").append(part);
  at("text").scrollTop = at("text").scrollHeight;
  if (state.follows) mark(number);
}

function figures() {
  const counts = state.rounds.map((round) => round.n_accepted);
  const tokens = state.tokens || counts.reduce((sum, count) => sum + count + 1, 0);
  at("n-tokens").textContent = tokens;
  at("n-rounds").textContent = counts.length;
  at("n-saved").textContent = Math.max(0, tokens - counts.length);
  at("length").textContent = counts.length ? (tokens / counts.length).toFixed(2) : "–";
  const deepest = Math.max(0, ...counts);
  const histogram = Array.from({ length: deepest + 1 }, (_, depth) => counts.filter((c) => c === depth).length);
  bars("depths", (counts.length ? histogram : []).map((count, depth) => [depth, count, count]));
}

// Rows of a name, a length and what to write behind it.
function bars(id, rows) {
  const most = Math.max(...rows.map((row) => row[1]), 1e-9);
  at(id).replaceChildren(...rows.flatMap(([name, length, words]) => {
    const bar = element("div", name === "plain" ? "bar plain" : "bar", "");
    bar.style.width = `${(100 * length) / most}%`;
    return [element("span", "", String(name)), bar, element("span", "", String(words))];
  }));
}

function show(number) {
  const round = state.rounds[number];
  at("round").value = number;
  at("round-name").textContent = `${number + 1} of ${state.rounds.length}`;
  mark(number);
  at("tree").replaceChildren(draw(round));
}

function mark(number) {
  for (const { number: own, part } of state.parts) part.classList.toggle("chosen", own === number);
}

// Leaves on lines of their own, parents between their children, the target's own token last.
function draw(round) {
  const nodes = round.nodes.map((node) => ({ ...node, kind: node.is_accepted ? "accepted" : "", children: [] }));
  let last = 0;
  nodes.forEach((node, index) => {
    if (node.parent >= 0) nodes[node.parent].children.push(index);
    if (node.is_accepted) last = index;
  });
  nodes.push({ text: round.bonus, parent: last, score: null, kind: "own", children: [] });
  nodes[last].children.push(nodes.length - 1);
  let line = 0, widest = 0;
  const place = (index, column) => {
    const node = nodes[index];
    const lines = node.children.map((child) => place(child, column + 1));
    node.x = MARGIN + column * COLUMN;
    node.line = lines.length ? (lines[0] + lines[lines.length - 1]) / 2 : line++;
    node.y = MARGIN + node.line * LINE;
    widest = Math.max(widest, node.x + WIDTH + MARGIN);
    return node.line;
  };
  place(0, 0);
  const picture = shape("svg", { width: widest, height: 2 * MARGIN + line * LINE });
  for (const node of nodes) {
    if (node.parent < 0) continue;
    const from = nodes[node.parent];
    const middle = from.x + WIDTH + (COLUMN - WIDTH) / 2;
    const path = `M${from.x + WIDTH} ${from.y + HEIGHT / 2} H${middle} V${node.y + HEIGHT / 2} H${node.x}`;
    picture.append(shape("path", { d: path, class: node.kind }));
  }
  for (const node of nodes) picture.append(box(node));
  return picture;
}

function box(node) {
  const group = shape("g", { class: node.kind });
  group.append(shape("rect", { x: node.x, y: node.y, width: WIDTH, height: HEIGHT, rx: 5 }));
  const label = shape("text", { x: node.x + 6, y: node.y + 17 });
  const written = JSON.stringify(node.text).slice(1, -1).replaceAll(" ", "·");
  label.textContent = written.length > 9 ? `${written.slice(0, 8)}…` : written || "∅";
  group.append(label);
  if (node.score !== null && node.parent >= 0) {
    const score = shape("text", { x: node.x + WIDTH - 6, y: node.y + 17, class: "score", "text-anchor": "end" });
    score.textContent = node.score.toFixed(2);
    group.append(score);
  }
  const title = shape("title", {});
  title.textContent = node.kind === "own" ? `${written}: the target's own` : `${written}, score ${node.score}`;
  group.append(title);
  return group;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

function working(is) {
  at("run").disabled = is;
  at("race").disabled = is;
  at("stop").disabled = !is;
}

function complain(message) {
  at("problem").textContent = message;
  at("problem").hidden = false;
}
