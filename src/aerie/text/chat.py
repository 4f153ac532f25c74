"""Chat: messages to a prompt, by the template that comes with the model.

A template is a program. It comes from the model directory, never from a request, and runs in
jinja2's immutable sandbox, which stops access to Python; long loops and large values it does not
stop. `render` bounds what comes out. A server renders in a process of its own, which can be
ended (`render_process.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aerie.errors import CheckpointError, UsageError
from aerie.text.files import TOKENIZER_CONFIG, read_object, read_text, special_tokens
from aerie.text.messages import check_objects, plain_messages

TEMPLATE_FILE = "chat_template.jinja"
DEFAULT, TOOL_USE = "default", "tool_use"

MAX_PROMPT_CHARS = 8 * 1024 * 1024  # about two million tokens, more than any context


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """The chat templates of one model; a model without any has an empty one."""

    templates: Mapping[str, Template]
    sources: Mapping[str, str]  # what they were compiled from
    tokens: Mapping[str, str]  # bos_token, eos_token, …: what a template may write
    origin: str  # where the templates come from, or where they were looked for
    max_chars: int = MAX_PROMPT_CHARS

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        documents: Sequence[Mapping[str, object]] | None = None,
        reasoning_effort: str | None = None,
    ) -> str:
        """The prompt of a conversation; encode it with `add_special_tokens=False`.

        Raises UsageError when the messages are malformed, when the template refuses them, and
        when the model has no template.
        """
        template = self._choose(with_tools=tools is not None)
        variables = {
            **self.tokens,
            "messages": plain_messages(messages),
            "tools": check_objects("tools", tools),
            "documents": check_objects("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if reasoning_effort is not None:  # templates ask whether it is defined
            variables["reasoning_effort"] = reasoning_effort
        try:
            return self._collect(template, variables)
        except UsageError:
            raise
        except TemplateError as error:
            raise UsageError(f"the chat template refuses these messages: {error!s:.300}") from error
        except Exception as error:  # a template is a program, and may fail in any way
            raise UsageError(
                f"the chat template fails on these messages: {type(error).__name__}: {error!s:.300}"
            ) from error

    @property
    def takes_tools(self) -> bool:
        """Whether a template writes the tools that are offered."""
        return self._names("tools")

    @property
    def takes_effort(self) -> bool:
        """Whether a template writes how much a model is to think."""
        return self._names("reasoning_effort")

    def __reduce__(self) -> tuple[object, ...]:
        """For another process: compiled templates stay here, it compiles its own."""
        made_of = (dict(self.sources), dict(self.tokens), self.origin)
        return compile_chat_template, made_of, {"max_chars": self.max_chars}

    def _names(self, variable: str) -> bool:
        chosen = self.sources.get(TOOL_USE, self.sources.get(DEFAULT, ""))
        return re.search(rf"\b{variable}\b", chosen) is not None

    def _choose(self, with_tools: bool) -> Template:
        names = (TOOL_USE, DEFAULT) if with_tools else (DEFAULT,)
        for name in names:
            if name in self.templates:
                return self.templates[name]
        raise UsageError(
            f"the model has no chat template ({self.origin}); send a plain prompt instead of "
            f"messages, or put the template of its instruction-tuned version into {TEMPLATE_FILE}"
        )

    def _collect(self, template: Template, variables: Mapping[str, object]) -> str:
        """Join the pieces as they come, so that a runaway loop is stopped while it writes."""
        pieces, n_chars = [], 0
        for piece in template.generate(variables):
            n_chars += len(piece)
            if n_chars > self.max_chars:
                raise UsageError(
                    f"the rendered chat is longer than {self.max_chars} characters; shorten it"
                )
            pieces.append(piece)
        return "".join(pieces)


def load_chat_template(directory: str | Path) -> ChatTemplate:
    """The templates of a model directory: chat_template.jinja, else those in tokenizer_config.json.

    A directory without any is legal, since base models have none: only `render` refuses then.
    """
    folder = Path(directory)
    config_path = folder / TOKENIZER_CONFIG
    config = read_object(config_path)
    tokens = special_tokens(config, config_path)
    source = read_text(folder / TEMPLATE_FILE)
    if source is not None:
        return compile_chat_template({DEFAULT: source}, tokens, TEMPLATE_FILE)
    sources = _named_sources(config.get("chat_template"), config_path)
    origin = TOKENIZER_CONFIG if sources else f"no {TEMPLATE_FILE}, none in {TOKENIZER_CONFIG}"
    return compile_chat_template(sources, tokens, origin)


def compile_chat_template(
    sources: Mapping[str, str], tokens: Mapping[str, str], origin: str
) -> ChatTemplate:
    """Templates given as text, by name; a syntax error is a CheckpointError here, not later."""
    environment = _environment()
    templates = {}
    for name, source in sources.items():
        try:
            templates[name] = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", "?")
            raise CheckpointError(
                f"{origin}: chat template {name!r} does not parse: {error} (line {line}); "
                "download it again or correct it"
            ) from error
    return ChatTemplate(templates, dict(sources), dict(tokens), origin)


def _named_sources(value: object, path: Path) -> dict[str, str]:
    """One template as a string, or a list of objects with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = value if isinstance(value, list) else [value]
    sources = {}
    for entry in entries:
        name, source = _name_and_template(entry)
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(
                f"{path}: chat_template is {value!r:.60}, must be a string or a list of objects "
                "with the strings name and template"
            )
        sources[name] = source
    return sources


def _name_and_template(entry: object) -> tuple[object, object]:
    return (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)


def _environment() -> ImmutableSandboxedEnvironment:
    """What public templates are written for: the settings and helpers that transformers gives."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        # What is constant would be computed by the compiler, 10**10**9 too: the optimizer does
        # it, and so does every output unless it must wait for a context.
        optimized=False,
        finalize=_at_render,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@pass_context
def _at_render(_: Context, value: object) -> object:
    return value


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which a model was not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(date_format: str) -> str:
    """Today, for templates that tell the model the date: such a prompt changes every day."""
    return datetime.now().strftime(date_format)
