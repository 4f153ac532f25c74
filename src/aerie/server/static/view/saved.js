// Rounds that a server has saved (aerie serve --save-rounds FILE): read here, sent nowhere.

import { at, element } from "./dom.js";

// `show` is told the sample that was chosen, `complain` what is wrong with a file.
export function offerSaved(show, complain) {
  let samples = [];
  // The same file again is a choice, too: it grows.
  at("saved").addEventListener("click", () => { at("saved").value = ""; });
  at("saved").addEventListener("change", async () => {
    const file = at("saved").files[0];
    if (!file) return;
    try {
      samples = readSaved(await file.text());
    } catch (error) {
      complain(`${file.name}: ${error.message}`);
      return;
    }
    at("samples").replaceChildren(...samples.map((sample, number) => {
      const option = element("option", "", named(sample));
      option.value = number;
      return option;
    }));
    at("samples").hidden = false;
    show(samples[0]);
  });
  at("samples").addEventListener("change", () => show(samples[Number(at("samples").value)]));
}

// A sample a line. The last line may be cut off: its server was.
export function readSaved(content) {
  const lines = content.split("\n");
  lines.pop();
  const samples = lines.map((line, number) => {
    try {
      return checked(JSON.parse(line));
    } catch (error) {
      throw new Error(`line ${number + 1} is no saved sample: ${error.message}`);
    }
  });
  const shown = samples.filter((sample) => sample.rounds.length);
  if (!shown.length) throw new Error("there is no round in it");
  return shown;
}

function checked(sample) {
  for (const name of ["prompt", "text"]) {
    if (typeof sample?.[name] !== "string") throw new Error(`${name} is no text`);
  }
  if (!Array.isArray(sample.rounds)) throw new Error("rounds are missing");
  for (const round of sample.rounds) {
    const isWhole = Array.isArray(round.nodes) && round.nodes.length && round.bonus;
    if (!isWhole) throw new Error("a round has no nodes, or no token after them");
  }
  return sample;
}

function named(sample) {
  const id = String(sample.request_id).slice(0, 8);
  return `${sample.time} · ${id} · ${sample.tokens} tokens, ${sample.n_rounds} rounds`;
}
