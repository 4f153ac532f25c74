// The race: one prompt without drafts and with them, a few times in turns, then both side by side.

import { reason } from "./about.js";
import { at, element, isStill, median, plural } from "./dom.js";
import { completion } from "./server.js";

const TURNS = 3;

// Neither of the two is shown its rounds: that would slow one of them down.
export async function race(asked, readAbout, signal) {
  const plain = new Lane("Plain decoding", { ...asked, speculative: false });
  const lanes = [plain, new Lane("With drafts", { ...asked, speculative: true })];
  at("lanes").replaceChildren(...lanes.map((lane) => lane.box));
  at("race-box").hidden = false;
  at("verdict").replaceChildren();
  at("race-box").scrollIntoView({ block: "nearest" });
  for (let turn = 0; turn < TURNS; turn += 1) {
    state(`Turn ${turn + 1} of ${TURNS}: one after the other, so that neither slows the other.`);
    // Whoever comes first finds colder caches: they change places.
    const order = turn % 2 ? lanes.toReversed() : lanes;
    for (const lane of order) await lane.run(plain.length, signal);
  }
  showVerdict(lanes, await readAbout());
  if (isStill()) for (const lane of lanes) lane.showAt(lane.typical, Infinity);
  else await together(lanes, signal);
  state(`Medians of ${TURNS} turns each; the texts are those of the median runs.`);
}

class Lane {
  constructor(name, asked) {
    this.box = at("lane").content.firstElementChild.cloneNode(true);
    this.asked = asked;
    this.runs = [];
    this.box.querySelector("h3").textContent = name;
    this.part("text").ariaLabel = `Text, ${name.toLowerCase()}`;
  }

  part(name) {
    return this.box.querySelector(`.${name}`);
  }

  get length() {
    return this.runs[0]?.text.length ?? 0;
  }

  get typical() {
    const middle = median(this.runs.map((run) => run.seconds));
    return this.runs.find((run) => run.seconds === middle);
  }

  async run(goal, signal) {
    const run = { text: "", marks: [], seconds: 0, counts: null, tokens: 0 };
    const began = performance.now();
    this.box.classList.add("running");
    this.fill(null);
    try {
      for await (const { body } of completion(this.asked, signal)) {
        run.seconds = (performance.now() - began) / 1000;
        if (body.usage) {
          run.tokens = body.usage.completion_tokens;
          run.counts = body.metrics.speculative_decoding;
        } else if (body.choices[0].text) {
          run.text += body.choices[0].text;
          run.marks.push({ seconds: run.seconds, length: run.text.length });
          this.show(run.text, run.seconds, run.marks.length);
          this.progress(goal ? run.text.length / goal : run.marks.length / this.asked.max_tokens);
        }
      }
    } finally {
      this.box.classList.remove("running");
    }
    this.runs.push(run);
    this.showAt(run, Infinity);
    this.list();
  }

  // A finished run as it stood after some seconds.
  showAt(run, seconds) {
    const past = run.marks.filter((mark) => mark.seconds <= seconds);
    const isOver = seconds >= run.seconds;
    const length = past.at(-1)?.length ?? 0;
    const passes = isOver ? run.counts.num_target_passes : past.length;
    this.show(run.text.slice(0, length), Math.min(seconds, run.seconds), passes);
    this.fill(isOver ? run : null);
    const pace = (run.tokens / run.seconds).toFixed(0);
    if (isOver) this.part("pace").textContent = `${pace} tokens a second`;
    else this.progress(length / run.text.length);
  }

  show(text, seconds, passes) {
    this.part("clock").textContent = `${seconds.toFixed(2)} s`;
    this.part("passes").textContent = plural(passes, "pass", "passes");
    this.part("pace").textContent = "";
    const box = this.part("text");
    box.textContent = text;
    box.scrollTop = box.scrollHeight;
  }

  progress(share) {
    this.part("going").style.width = `${100 * Math.min(share, 1)}%`;
  }

  // A run that is over shows whose its tokens are; one that goes on shows how far it is.
  fill(run) {
    const kept = run?.tokens ? run.counts.num_accepted_draft_tokens / run.tokens : 0;
    this.part("accepted").style.width = `${100 * kept}%`;
    this.part("own").style.width = run ? `${100 * (1 - kept)}%` : "0";
    this.progress(0);
  }

  list() {
    const middle = this.typical, words = [];
    for (const run of this.runs) {
      if (words.length) words.push(" · ");
      words.push(element(run === middle ? "b" : "span", "", run.seconds.toFixed(2)));
    }
    this.part("runs").replaceChildren(...words, " s");
  }
}

// Both median runs from one start, at the pace they had.
function together(lanes, signal) {
  state("Both median runs again, from one start, at the pace they had.");
  const last = Math.max(...lanes.map((lane) => lane.typical.seconds));
  const began = performance.now();
  return new Promise((resolve) => {
    const frame = () => {
      const seconds = signal.aborted ? Infinity : (performance.now() - began) / 1000;
      for (const lane of lanes) lane.showAt(lane.typical, seconds);
      if (seconds < last) requestAnimationFrame(frame);
      else resolve();
    };
    frame();
  });
}

function showVerdict([plain, drafted], about) {
  const [one, other] = [plain.typical, drafted.typical];
  const ratio = one.seconds / other.seconds;
  const lines = [element("p", "ratio", `${ratio.toFixed(2)} times plain decoding`)];
  for (const line of explained(one, other, ratio, about)) lines.push(element("p", "", line));
  lines.push(element("p", "", sameText([...plain.runs, ...drafted.runs])));
  at("verdict").replaceChildren(...lines);
}

// A speed-up is tokens a pass, over how much longer a pass takes.
function explained(one, other, ratio, about) {
  const [passes, fewer] = [one, other].map((run) => run.counts.num_target_passes);
  const longer = other.seconds / fewer / (one.seconds / passes);
  const lines = [];
  if (!other.counts.num_draft_tokens) {
    lines.push("Nothing was drafted: what differs is noise, and the price of planning.");
    lines.push(about.policy === "off" ? "This server was started without drafts." : reason(about));
  } else {
    const [time, gain] = [longer, other.tokens / fewer].map((number) => number.toFixed(2));
    const each = `each of them ${time} times as long and good for ${gain} tokens`;
    lines.push(`${plural(fewer, "pass", "passes")} instead of ${passes}, ${each}.`);
    if (ratio < 1) lines.push("Slower: on this text drafts take more time than they save.");
  }
  if (about.engine === "graphs") {
    lines.push("Not a fair race: plain decoding runs outside this server's captured graphs.");
  }
  return lines;
}

function sameText(runs) {
  const isSame = runs.every((run) => run.text === runs[0].text);
  if (isSame) return `The same text in all ${runs.length} runs.`;
  return "The texts differ: two tokens were nearly tied, which --numerics exact rules out.";
}

function state(words) {
  at("race-state").textContent = words;
}
