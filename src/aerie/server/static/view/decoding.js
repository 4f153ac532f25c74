// What was decoded: the rounds as they were told, and which token of which round a text is from.

export class Decoding {
  constructor(prompt) {
    this.prompt = prompt;
    this.rounds = [];
    this.total = null; // once it is over: what the server counted
    this.seconds = null;
    this.waiting = []; // tokens that were decided and whose text has not come
    this.decoder = new TextDecoder();
  }

  takeRound(round) {
    const number = this.rounds.push(round) - 1;
    for (const node of round.nodes.slice(1)) {
      if (node.is_accepted) this.wait(number, "accepted", node);
    }
    this.wait(number, "own", round.bonus);
  }

  // A character may take several tokens; it belongs to the one that completes it.
  wait(number, kind, token) {
    const bytes = token.bytes ? Uint8Array.from(token.bytes) : new TextEncoder().encode(token.text);
    const text = this.decoder.decode(bytes, { stream: true });
    if (text) this.waiting.push({ number, kind, text });
  }

  // Cuts the server's text where tokens meet. It holds text back, and drops tokens without text.
  takeText(text) {
    const parts = [];
    while (text) {
      while (this.waiting.length && !agree(this.waiting[0].text, text)) this.waiting.shift();
      const next = this.waiting[0] ?? { number: this.rounds.length - 1, kind: "", text };
      const length = Math.min(next.text.length, text.length);
      parts.push({ number: next.number, kind: next.kind, text: text.slice(0, length) });
      text = text.slice(length);
      if (length < next.text.length) next.text = next.text.slice(length);
      else this.waiting.shift();
    }
    return parts;
  }

  end(body, seconds) {
    const counts = body.metrics.speculative_decoding;
    this.total = { tokens: body.usage.completion_tokens, passes: counts.num_target_passes };
    this.seconds = seconds;
  }

  get accepted() {
    return this.rounds.map((round) => round.n_accepted);
  }

  get passes() {
    return this.total?.passes ?? this.rounds.length;
  }

  get tokens() {
    return this.total?.tokens ?? this.accepted.reduce((sum, count) => sum + count + 1, 0);
  }

  // Rounds in which nothing was drafted.
  get bare() {
    return this.rounds.filter((round) => round.nodes.length === 1).length;
  }
}

function agree(one, other) {
  return one.startsWith(other) || other.startsWith(one);
}
