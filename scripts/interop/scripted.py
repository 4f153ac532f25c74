"""The built-in pair made to say what a script wants: real rounds and drafts, forced logits.

    python -m scripts.interop.scripted DIALECT        serves it

Its tokenizer has the dialect's special tokens in place of the last ones it learned, its template is
in the dialect's form, and the target's logits are raised at the token that the script has next.
Everything else is the engine as it is.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from aerie import Engine
from aerie.engine.launch import Direct
from aerie.server.engine_loop import Loaded
from aerie.text.chat import load_chat_template
from scripts.interop.tools import ANSWER, ARGUMENTS, RESULTS

PAIR = Path(__file__).resolve().parents[2] / "src/aerie/assets/pair"
TEMPLATES = Path(__file__).parent / "templates"
FORCE = 1e4  # far above every logit
NAME = "scripted"
Reply = Callable[[str], str]  # what is said to a prompt, both with their special tokens


@dataclass(frozen=True)
class Manner:
    """How a dialect's models speak: their tokens, and the text of an answer."""

    special: tuple[str, ...]  # tokens that a text is decoded without
    ends: tuple[str, ...]  # those of them that end a text
    plain: tuple[str, ...] = ()  # tokens of their own that a text does show


CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
MANNERS = {
    "hermes": Manner(
        ("<|im_start|>", "<|im_end|>"), ("<|im_end|>",), ("<tool_call>", "</tool_call>")
    ),
    "llama3_json": Manner(
        ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>", "<|eom_id|>"),
        ("<|eot_id|>", "<|eom_id|>"),
    ),
    "harmony": Manner((*CHANNELS, "<|call|>", "<|return|>"), ("<|call|>", "<|return|>")),
}


def said(dialect: str, text: str) -> str:
    """An answer without calls."""
    if dialect == "harmony":
        first = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant"
        return f"{first}<|channel|>final<|message|>{text}<|return|>"
    return f"{text}{MANNERS[dialect].ends[0]}"


def called(dialect: str, *calls: tuple[str, dict[str, Any]], text: str = "") -> str:
    """An answer that calls; a model of channels makes one call at a time."""
    if dialect == "harmony":
        name, arguments = calls[0]
        first = f"<|channel|>analysis<|message|>I need {name}.<|end|><|start|>assistant"
        to = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{first}{to}{_json(arguments)}<|call|>"
    if dialect == "hermes":
        written = [
            f'<tool_call>\n{{"name": "{name}", "arguments": {_json(own)}}}\n</tool_call>'
            for name, own in calls
        ]
        return "\n".join([*([text] if text else []), *written]) + "<|im_end|>"
    written = [f'{{"name": "{name}", "parameters": {_json(own)}}}' for name, own in calls]
    return f"{text}<|python_tag|>" * bool(text) + "; ".join(written) + "<|eom_id|>"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def scripted(dialect: str, reply: Reply, folder: Path, **settings: Any) -> Loaded:
    """An engine that answers by the script; its files are written to a folder."""
    write_target(folder, MANNERS[dialect])
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{dialect}.jinja").read_text())
    speculation = {"method": "eagle3+ngram", "top_k": 2, "depth": 4, "nodes": 10}
    engine = Engine.load(
        str(folder),
        str(PAIR / "head"),
        **{"device": "cpu", "probe": "off", "speculation": speculation, **settings},
    )
    force(engine, reply)
    return Loaded(engine, load_chat_template(folder))


def force(engine: Engine, reply: Reply) -> None:
    """Raise the logits of what the script says next, at every node of every tree."""
    launcher, tokenizer = engine.core.launcher, engine.tokenizer
    assert isinstance(launcher, Direct), "a recorded round calls no script"
    judge = launcher.parts.rule

    @lru_cache(maxsize=256)
    def script(prompt: tuple[int, ...]) -> Sequence[int]:
        text = tokenizer.decode(prompt, skip_special_tokens=False)
        return [*tokenizer.encode(reply(text), add_special_tokens=False), tokenizer.eos_ids[0]]

    def rule(parts: Any, bucket: Any, layout: Any, logits: Tensor) -> Any:
        bounds, positions = layout.qo_indptr.tolist(), layout.positions.tolist()
        for index, seat in enumerate(launcher.seating.seats):
            prompt = seat.request.job.prompt
            words = script(prompt)
            for row in range(bounds[index], bounds[index + 1]):
                place = min(positions[row] + 1 - len(prompt), len(words) - 1)
                logits[row, words[place]] += FORCE
        return judge(parts, bucket, layout, logits)

    launcher.parts = replace(launcher.parts, rule=rule)


def write_target(folder: Path, manner: Manner) -> None:
    """The pair's target, its last learned tokens replaced by the dialect's own."""
    source = PAIR / "target"
    for path in source.iterdir():
        if "safetensors" in path.name or path.name == "config.json":
            (folder / path.name).symlink_to(path)
    tokens = (*manner.special, *manner.plain)
    learned = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = learned["model"]["vocab"]
    first = len(vocabulary) - len(tokens)
    gone = {token for token, number in vocabulary.items() if number >= first}
    learned["model"]["vocab"] = {t: n for t, n in vocabulary.items() if t not in gone}
    learned["model"]["merges"] = [
        merge for merge in learned["model"]["merges"] if "".join(merge) not in gone
    ]
    ids = {token: first + index for index, token in enumerate(tokens)}
    (pattern,) = learned["added_tokens"]
    learned["added_tokens"] += [
        {**pattern, "id": number, "content": token, "special": token in manner.special}
        for token, number in ids.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(learned))
    (folder / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text())
    ends = [0, *(ids[token] for token in manner.ends)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


HELLO = "Hello! 1 < 2, <tool, {curly} ☀"
BROKEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>',
    "llama3_json": '{"name": "add", "parameters": {"a": }}',
    "harmony": '<|channel|>commentary to=functions.add json<|message|>{"a": }<|call|>',
}


def conversation(dialect: str, prompt: str) -> str:
    """The script: two calls, together where the dialect can, then an answer with their results."""
    left = [name for name, result in RESULTS.items() if result not in prompt]
    if "broken" in prompt:
        is_ended = BROKEN[dialect].endswith(MANNERS[dialect].ends)
        return BROKEN[dialect] + ("" if is_ended else MANNERS[dialect].ends[0])
    if not left:
        return said(dialect, ANSWER)
    if (must := re.search(r"must call (\w+)", prompt)) is not None:
        # A grammar leaves no other text: the call alone, of all of them a list.
        calls = [{"name": name, "arguments": own} for name, own in ARGUMENTS.items()]
        named = [call for call in calls if call["name"] == must.group(1)]
        return _json(named[0] if named else calls) + MANNERS[dialect].ends[0]
    if "units" not in prompt:  # no tools, whose schemas have it
        return said(dialect, HELLO)
    return called(dialect, *((name, ARGUMENTS[name]) for name in left), text="I look.")


def main() -> None:
    from aerie.server.host import ThreadHost
    from aerie.server.run import serve
    from aerie.server.settings import ServerSettings

    (dialect,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:

        def load() -> Loaded:
            return scripted(dialect, lambda prompt: conversation(dialect, prompt), Path(folder))

        settings = ServerSettings(port=0, name=NAME)
        serve(ThreadHost(load), settings, lambda words: print(words, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main()
