// Which round is shown: the strip of all rounds, play and pause, one step back and forth.

import { at, isStill, plural, shape } from "./dom.js";
import { described, drawTree, tallest } from "./tree.js";

const COLUMN = 36; // pixels, where there is room for it

export class Replay {
  constructor(shown) {
    this.shown = shown; // told the number of the round and the round
    this.rounds = [];
    this.number = -1;
    this.height = 0; // of the tallest tree, so that playing moves nothing else
    this.measured = 0;
    this.follows = true; // the newest round is shown as it comes
    this.timer = null;
    this.frame = null;
    at("round").addEventListener("input", () => this.choose(Number(at("round").value)));
    at("play").addEventListener("click", () => this.toggle());
    at("back").addEventListener("click", () => this.move(-1));
    at("forth").addEventListener("click", () => this.move(1));
    const scrub = (event) => { if (event.buttons & 1) this.choose(this.under(event.clientX)); };
    at("strip").addEventListener("pointerdown", scrub);
    at("strip").addEventListener("pointermove", scrub);
  }

  begin(rounds) {
    this.pause();
    Object.assign(this, { rounds, number: -1, follows: true, height: 0, measured: 0 });
    at("tree").replaceChildren();
    this.refresh();
  }

  // Rounds come faster than anybody sees: drawn once a frame.
  grow() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.refresh();
      if (this.follows && this.rounds.length) this.show(this.rounds.length - 1);
    });
  }

  refresh() {
    const count = this.rounds.length;
    this.height = Math.max(this.height, tallest(this.rounds.slice(this.measured)));
    this.measured = count;
    at("tree").style.height = `${this.height + 2}px`;
    at("scrub").style.maxWidth = `${Math.max(count, 8) * COLUMN}px`;
    drawStrip(this.rounds);
    at("round").max = Math.max(0, count - 1);
    for (const id of ["round", "play", "back", "forth"]) at(id).disabled = !count;
    this.name();
  }

  choose(number) {
    if (!this.rounds[number] || number === this.number) return;
    this.pause();
    this.follows = number === this.rounds.length - 1;
    this.show(number);
  }

  move(step) {
    this.choose(Math.min(Math.max(this.number + step, 0), this.rounds.length - 1));
  }

  toggle() {
    if (this.timer !== null) this.pause();
    else if (this.rounds.length) this.play();
  }

  play() {
    this.follows = false;
    at("play").textContent = "Pause";
    document.body.classList.add("playing");
    if (this.number >= this.rounds.length - 1) this.show(0);
    const speed = () => 1000 / Number(at("speed").value);
    const next = () => {
      if (this.number >= this.rounds.length - 1) {
        this.pause();
        return;
      }
      this.show(this.number + 1);
      this.timer = setTimeout(next, speed());
    };
    this.timer = setTimeout(next, speed());
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    at("play").textContent = "Play";
    document.body.classList.remove("playing");
  }

  show(number) {
    const round = this.rounds[number];
    this.number = number;
    at("round").value = number;
    const slow = this.timer !== null && Number(at("speed").value) <= 2 && !isStill();
    const picture = drawTree(round);
    if (slow) picture.classList.add("growing");
    at("tree").replaceChildren(picture);
    at("tree").scrollTo(0, 0);
    at("marker")?.setAttribute("x", number);
    this.name();
    this.shown(number, round);
  }

  name() {
    const round = this.rounds[this.number];
    const place = round ? `Round ${this.number + 1} of ${this.rounds.length}` : "No round yet";
    at("round-name").textContent = place;
    at("round-words").textContent = round ? described(round) : "";
    at("round").setAttribute("aria-valuetext", place);
  }

  under(x) {
    const { left, width } = at("strip").getBoundingClientRect();
    const number = Math.floor(((x - left) / width) * this.rounds.length);
    return Math.min(Math.max(number, 0), this.rounds.length - 1);
  }
}

// A column a round: the target's own token at the foot, accepted ones upon it.
function drawStrip(rounds) {
  const most = 1 + Math.max(1, ...rounds.map((round) => round.n_accepted));
  const picture = shape("svg", {
    viewBox: `0 0 ${Math.max(rounds.length, 1)} ${most}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${plural(rounds.length, "round")}, each as high as its tokens`,
  });
  const marker = shape("rect", { id: "marker", x: -2, y: 0, width: 1, height: most });
  picture.append(marker);
  const rect = (kind, x, y, width, height) => {
    picture.append(shape("rect", { x, y, width, height, class: kind }));
  };
  rounds.forEach(({ n_accepted: height }, x) => {
    rect("own", x + 0.1, most - 1, 0.8, 1);
    if (height) rect("accepted", x + 0.1, most - 1 - height, 0.8, height);
  });
  for (let y = 1; y < most; y += 1) rect("gap", 0, y - 0.06, rounds.length, 0.12);
  at("strip").replaceChildren(picture);
}
