// Keys that work anywhere on the page, except while somebody types.

const STEPS = { ArrowLeft: -1, k: -1, ArrowRight: 1, j: 1 };

export function listen({ run, stop, step, play }) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) act(event, run);
    else if (event.key === "Escape") act(event, stop);
    else if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    else if (event.key in STEPS) act(event, () => step(STEPS[event.key]));
    else if (event.key === " " && !isPressable(event.target)) act(event, play);
  });
}

function act(event, job) {
  event.preventDefault();
  job();
}

function isTyping(target) {
  return target.matches("textarea, select, input:not([type=range]):not([type=checkbox])");
}

// Space presses what has the focus.
function isPressable(target) {
  return target.matches("button, a, summary, input[type=checkbox]");
}
