// What a decoding amounts to: counts, speed, and rounds by accepted depth.

import { at, element, plural } from "./dom.js";

export function showFigures(decoding) {
  const { tokens, passes, seconds } = decoding;
  const saved = Math.max(0, tokens - passes);
  figure("n-tokens", tokens, "token");
  figure("n-passes", passes, "target pass", "target passes");
  figure("n-saved", saved, "pass saved", "passes saved");
  figure("length", passes ? (tokens / passes).toFixed(2) : "–", "", "tokens a pass");
  figure("speed-here", seconds ? (tokens / seconds).toFixed(0) : "–", "", "tokens a second");
  at("speed-here").hidden = !seconds;
  showDepths(decoding.accepted);
}

function figure(id, value, one, many = `${one}s`) {
  const words = ` ${value === 1 ? one : many}`;
  at(id).replaceChildren(element("b", "", value.toLocaleString("en")), words);
}

function showDepths(accepted) {
  const counts = accepted.length ? Array(Math.max(...accepted) + 1).fill(0) : [];
  for (const depth of accepted) counts[depth] += 1;
  const most = Math.max(...counts, 1);
  const rows = counts.map((count, depth) => {
    const row = element("div", "row");
    const bar = element("span", depth ? "bar accepted" : "bar none");
    bar.style.width = `${(100 * count) / most}%`;
    const lane = element("span", "lane");
    if (count) lane.append(bar);
    const [name, words] = [element("span", "depth", depth), element("span", "count", count)];
    row.append(name, lane, words);
    row.title = `${plural(count, "round")} with ${plural(depth, "token")} accepted`;
    return row;
  });
  at("depths").replaceChildren(...rows);
}
