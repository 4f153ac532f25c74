// The API key: from /#key=…, from this tab's storage, or asked for. Only this server gets it.

import { at } from "./dom.js";

const NAME = "aerie-key";

export const heldKey = () => sessionStorage.getItem(NAME) ?? "";

// Nothing else fits into a header; what is not kept is asked for again.
function keep(key) {
  if (/^[\x20-\x7e]+$/.test(key)) sessionStorage.setItem(NAME, key);
}

// Takes a key out of the address, so that it is not copied along with it.
export function takeKeyFromAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  if (!said.has("key")) return;
  keep(said.get("key"));
  said.delete("key");
  const rest = said.toString().replace(/=(?=&|$)/g, "");
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
}

let asking = null;

// Resolves when a key was given; several requests that were refused share one question.
export function askForKey(wasWrong) {
  asking ??= ask(wasWrong).finally(() => { asking = null; });
  return asking;
}

function ask(wasWrong) {
  const box = at("key-box"), field = at("key");
  at("key-refused").hidden = !wasWrong;
  field.value = "";
  box.returnValue = "";
  box.showModal();
  field.focus();
  return new Promise((resolve, reject) => {
    box.addEventListener("close", () => {
      const given = field.value.trim();
      field.value = "";
      if (box.returnValue !== "use" || !given) {
        reject(new Error("This server answers nobody without its API key."));
        return;
      }
      keep(given);
      resolve();
    }, { once: true });
  });
}
