// One round as a tree: what was kept runs straight along the top, what was dropped hangs below it.

import { plural, shape, written } from "./dom.js";

const COLUMN = 132, LINE = 36, WIDTH = 108, HEIGHT = 28, MARGIN = 12, CAPTION = 10;
const LONGEST = 9; // characters of a token that fit beside its score

export function drawTree(round) {
  const nodes = arranged(round);
  const widest = Math.max(...nodes.map((node) => node.x)) + WIDTH + MARGIN;
  const picture = shape("svg", { width: widest, height: heightOf(nodes), role: "img" });
  picture.ariaLabel = described(round);
  // What was kept is drawn over what was dropped.
  const links = nodes.filter((node) => node.from).map(link);
  links.sort((one, other) => other.matches(".rejected") - one.matches(".rejected"));
  picture.append(...links);
  for (const node of nodes) picture.append(box(node));
  return picture;
}

// What the tallest of some rounds needs.
export function tallest(rounds) {
  return Math.max(0, ...rounds.map((round) => heightOf(arranged(round))));
}

function heightOf(nodes) {
  return Math.max(...nodes.map((node) => node.y)) + HEIGHT + CAPTION + MARGIN;
}

export function described(round) {
  const drafted = round.nodes.length - 1;
  const own = `the target's own token ${written(round.bonus.text)}`;
  if (!drafted) return `nothing drafted; ${own}`;
  return `${plural(drafted, "token")} drafted, ${round.n_accepted} accepted, then ${own}`;
}

// The nodes with their places; the target's own token follows the last accepted one.
function arranged(round) {
  const nodes = round.nodes.map((node) => ({ ...node, kind: kindOf(node), children: [] }));
  for (const node of nodes.slice(1)) nodes[node.parent].children.push(node);
  const last = nodes.filter((node) => node.is_accepted).at(-1);
  const own = { ...round.bonus, score: null, kind: "own", children: [] };
  last.children.push(own);
  let line = 0;
  const place = (node, depth) => {
    node.depth = depth;
    node.x = MARGIN + depth * COLUMN;
    node.y = MARGIN + line * LINE;
    const kept = node.children.filter((child) => child.kind !== "rejected");
    const dropped = node.children.filter((child) => child.kind === "rejected");
    [...kept, ...dropped].forEach((child, index) => {
      if (index) line += 1;
      child.from = node;
      place(child, depth + 1);
    });
  };
  place(nodes[0], 0);
  return [...nodes, own];
}

function kindOf(node) {
  if (node.parent < 0) return "root";
  return node.is_accepted ? "accepted" : "rejected";
}

function link({ from, x, y, kind, depth }) {
  const start = from.x + WIDTH, middle = start + (COLUMN - WIDTH) / 2, end = y + HEIGHT / 2;
  const way = `M${start} ${from.y + HEIGHT / 2} H${middle} V${end} H${x}`;
  const path = shape("path", { d: way, class: kind });
  path.style.setProperty("--depth", depth);
  return path;
}

function box(node) {
  const { x, y, kind, depth } = node;
  const group = shape("g", { class: kind });
  group.style.setProperty("--depth", depth);
  const put = (name, attributes, text = "") => {
    const made = shape(name, attributes);
    made.textContent = text;
    group.append(made);
  };
  const whole = written(node.text), hasScore = kind === "accepted" || kind === "rejected";
  const most = hasScore ? LONGEST : LONGEST + 4;
  put("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 });
  const short = whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
  put("text", { x: x + 8, y: y + 18 }, short);
  if (kind === "root") put("text", { x: x + 1, y: y + HEIGHT + CAPTION + 3 }, "last token");
  if (hasScore) {
    const right = { x: x + WIDTH - 7, y: y + 18, "text-anchor": "end" };
    put("text", { ...right, class: "score" }, node.score.toFixed(2));
    const width = Math.max(0, (WIDTH - 12) * Math.min(node.score, 1));
    put("rect", { x: x + 6, y: y + HEIGHT - 4, width, height: 2, class: "meter" });
  }
  put("title", {}, TITLES[kind](whole, node.score));
  return group;
}

const TITLES = {
  root: (text) => `${text}: the last token of the text so far`,
  own: (text) => `${text}: the target's own token`,
  accepted: (text, score) => `${text}: accepted, score ${score}`,
  rejected: (text, score) => `${text}: rejected, score ${score}`,
};
