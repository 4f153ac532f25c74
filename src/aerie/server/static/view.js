// The live view: decodes over the server's own API, draws every round, races plain decoding.

import { readAbout, showAbout, showWhy } from "./view/about.js";
import { Decoding } from "./view/decoding.js";
import { at, element } from "./view/dom.js";
import { showFigures } from "./view/figures.js";
import { heldKey, takeKeyFromAddress } from "./view/key.js";
import { listen } from "./view/keys.js";
import { race } from "./view/race.js";
import { Replay } from "./view/replay.js";
import { offerSaved } from "./view/saved.js";
import { call, completion } from "./view/server.js";
import { TextView } from "./view/text.js";

const replay = new Replay((number, round) => text.show(number, round));
const text = new TextView((number) => replay.choose(number));
let about = null;
let controller = null;

function asked() {
  return {
    prompt: at("prompt").value,
    max_tokens: Number(at("tokens").value),
    temperature: Number(at("temperature").value),
    seed: Number(at("seed").value),
  };
}

async function run(job) {
  if (controller) return;
  controller = new AbortController();
  at("problem").hidden = true;
  working(true);
  try {
    about ??= await meet();
    await job(controller.signal);
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
  } finally {
    controller = null;
    working(false);
  }
}

async function decode(signal) {
  const wish = asked(), speculative = at("drafts").value === "on";
  const decoding = begin(wish.prompt, `Decoded here, by ${about.model}`);
  const began = performance.now();
  const options = { ...wish, speculative, show_rounds: true };
  for await (const { name, body } of completion(options, signal)) {
    if (name === "round") {
      decoding.takeRound(body);
      replay.grow();
    } else if (body.usage) {
      decoding.end(body, (performance.now() - began) / 1000);
    } else {
      text.add(decoding.takeText(body.choices[0].text));
    }
    showFigures(decoding);
  }
  about = await readAbout();
  showWhy(about, decoding, speculative);
}

function begin(prompt, origin) {
  const decoding = new Decoding(prompt);
  text.begin(prompt);
  replay.begin(decoding.rounds);
  showFigures(decoding);
  at("why").hidden = true;
  at("origin").textContent = origin;
  for (const button of at("examples").children) button.removeAttribute("aria-pressed");
  return decoding;
}

async function meet() {
  const found = await readAbout();
  showAbout(found);
  return found;
}

// Something to look at before anything is asked: real rounds, decoded before and shipped.
async function offerExamples() {
  const kept = await (await fetch("view/examples.json")).json();
  at("prompt").value ||= kept.asked.prompt;
  at("temperature").value = kept.asked.temperature;
  at("seed").value = kept.asked.seed;
  at("tokens").value = kept.asked.max_tokens;
  at("examples").replaceChildren(...kept.examples.map((example) => {
    const button = element("button", "", example.name);
    button.type = "button";
    button.addEventListener("click", () => showExample(kept, example, button));
    return button;
  }));
  if (!controller) at("examples").firstElementChild.click();
}

function showExample(kept, example, button) {
  if (controller) return;
  const origin = `An example of the built-in pair, decoded on ${kept.made.date.slice(0, 10)}`;
  showKept({ ...example, prompt: kept.asked.prompt }, origin);
  button.setAttribute("aria-pressed", "true");
}

function showSaved(sample) {
  if (controller) return;
  at("problem").hidden = true;
  showKept(sample, `Saved on ${sample.time}, by ${sample.model}`);
}

// Rounds that were decoded before, by whomever; the server is not asked.
function showKept(kept, origin) {
  const decoding = begin(kept.prompt, origin);
  for (const round of kept.rounds) decoding.takeRound(round);
  decoding.total = { tokens: kept.tokens, passes: kept.n_rounds ?? kept.rounds.length };
  text.add(decoding.takeText(kept.text));
  showFigures(decoding);
  replay.refresh();
  // The round that says most: the longest accepted path, the most that was drafted beside it.
  const weights = decoding.rounds.map((round) => 1000 * round.n_accepted + round.nodes.length);
  replay.choose(weights.indexOf(Math.max(...weights)));
}

// With a key a browser cannot open these by itself.
function openWithKey(event) {
  if (!heldKey()) return;
  event.preventDefault();
  const link = event.currentTarget;
  run(async () => {
    const answer = await call(link.getAttribute("href"));
    window.open(URL.createObjectURL(await answer.blob()), "_blank");
  });
}

function working(is) {
  for (const id of ["run", "race"]) at(id).disabled = is;
  for (const button of at("examples").children) button.disabled = is;
  at("stop").disabled = !is;
  document.body.ariaBusy = String(is);
}

function complain(message) {
  at("problem").textContent = message;
  at("problem").hidden = false;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run(decode);
});
at("race").addEventListener("click", () => run((signal) => race(asked(), readAbout, signal)));
at("stop").addEventListener("click", () => controller?.abort());
for (const link of at("links").children) link.addEventListener("click", openWithKey);
listen({
  run: () => at("ask").requestSubmit(),
  stop: () => { replay.pause(); controller?.abort(); },
  step: (by) => replay.move(by),
  play: () => replay.toggle(),
});

offerSaved(showSaved, complain);
takeKeyFromAddress();
await offerExamples();
// A link to /#run shows a decoding at once.
if (location.hash === "#run") run(decode);
else meet().then((found) => { about ??= found; }, (error) => complain(error.message));
