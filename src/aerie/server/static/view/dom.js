// Small tools for the document. Text of a model only ever becomes textContent.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function element(name, kind = "", text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

export function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

// A token on one line: spaces as dots, line breaks as \n.
export function written(text) {
  return JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll(" ", "·") || "∅";
}

export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
