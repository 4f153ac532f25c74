// The decoded text: one span a round, one inside it for each token.

import { at, element, plural } from "./dom.js";

export class TextView {
  constructor(choose) {
    this.choose = choose;
    this.rounds = new Map(); // spans, by the number of their round
    this.number = -1; // of the round that is shown
    this.round = null;
    this.chosen = null; // its span
  }

  begin(prompt) {
    this.rounds.clear();
    Object.assign(this, { number: -1, round: null, chosen: null });
    at("text").replaceChildren(element("span", "prompt", prompt));
  }

  add(parts) {
    for (const { number, kind, text } of parts) {
      this.of(number).append(element("span", kind, text));
    }
    at("text").scrollTop = at("text").scrollHeight;
    if (!this.chosen) this.mark();
  }

  of(number) {
    if (!this.rounds.has(number)) {
      const made = element("span", "round");
      // One stop of the Tab key for the whole text; the arrows go from round to round.
      made.tabIndex = -1;
      made.role = "button";
      made.addEventListener("focus", () => this.choose(number));
      made.addEventListener("click", () => made.focus());
      this.rounds.set(number, made);
      at("text").append(made);
    }
    return this.rounds.get(number);
  }

  show(number, round) {
    const hadFocus = this.chosen !== null && this.chosen === document.activeElement;
    if (this.chosen) {
      this.chosen.removeAttribute("aria-current");
      this.chosen.tabIndex = -1;
    }
    Object.assign(this, { number, round, chosen: null });
    for (const [own, span] of this.rounds) span.classList.toggle("later", own > number);
    this.mark();
    if (hadFocus) this.chosen?.focus();
  }

  // The text of a round may come after the round was shown.
  mark() {
    const span = this.rounds.get(this.number);
    if (!span) return;
    this.chosen = span;
    const kept = plural(this.round.n_accepted, "token");
    span.ariaLabel = `Round ${this.number + 1}, ${kept} accepted: ${span.textContent}`;
    span.setAttribute("aria-current", "true");
    span.tabIndex = 0;
    this.scrollTo(span);
  }

  // Within the box only: the page itself stays where it is.
  scrollTo(span) {
    const box = at("text"), top = span.offsetTop - box.offsetTop;
    const first = box.scrollTop, last = first + box.clientHeight;
    if (top < first || top + span.offsetHeight > last) box.scrollTop = top - box.clientHeight / 2;
  }
}
