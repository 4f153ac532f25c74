// What is served, in the head of the page; and why a server drew nothing where it did not.

import { at, element, plural } from "./dom.js";
import { call } from "./server.js";

const LOOK_MILLISECONDS = 500;
// What draws a tree in every round, whatever it costs.
const TREE_COMMAND = "aerie serve --speculative-eagle-topk 3"
  + " --speculative-num-steps 5 --speculative-num-draft-tokens 16";

// What the server says of itself, as soon as it has loaded.
export async function readAbout() {
  for (;;) {
    try {
      return await (await call("about")).json();
    } catch (error) {
      if (error.status !== 503) throw error;
      chips([["", error.message]]);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MILLISECONDS));
    }
  }
}

export function showAbout(about) {
  chips([
    ["model", about.model],
    ["drafts", policyWords(about)],
    ["in", `${about.dtype} on ${about.device}`],
    ["context", about.context.toLocaleString("en")],
    ["aerie", about.version],
  ]);
  const isOff = about.policy === "off";
  at("drafts-on").textContent = isOff ? "this server has none" : `on: ${policyName(about)}`;
  at("drafts").disabled = isOff;
}

function policyWords(about) {
  const { top_k: width, depth, nodes } = about.tree;
  const name = policyName(about);
  if (about.policy === "off" || name.startsWith("chain")) return name;
  const most = about.policy === "fixed" ? ", " : " ≤ ";
  return `${name}${most}${width} wide, ${depth} deep, ${plural(nodes - 1, "node")}`;
}

function policyName({ policy, tree }) {
  if (policy !== "fixed") return policy;
  return tree.top_k === 1 ? `chain of ${tree.depth}` : "fixed tree";
}

// Nothing drawn, or little: the reason, where the server knows it, and what would draw something.
export function showWhy(about, decoding, hadDrafts) {
  at("why").hidden = true;
  if (about.why_no_rounds) {
    why(`No rounds to draw: ${about.why_no_rounds}.`);
  } else if (hadDrafts && about.policy !== "off" && decoding.bare > decoding.rounds.length / 2) {
    const all = decoding.bare === decoding.rounds.length;
    const when = all ? "" : ` in ${decoding.bare} of ${plural(decoding.rounds.length, "round")}`;
    const words = `The ${about.policy} drafted nothing${when}.`;
    why(words, reason(about), `A tree in every round: ${TREE_COMMAND}`);
  }
}

// In the policy's own words, as a sentence.
export function reason(about) {
  const words = about.reason ?? "a draft was expected to cost more time than it saves";
  return `${words[0].toUpperCase()}${words.slice(1)}.`;
}

function why(...lines) {
  at("why").replaceChildren(...lines.map((line) => element("p", "", line)));
  at("why").hidden = false;
}

function chips(rows) {
  at("about").replaceChildren(...rows.map(([name, value]) => {
    const row = element("li");
    row.append(element("span", "name", name), ` ${value}`);
    return row;
  }));
}
