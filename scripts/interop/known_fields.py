"""Whether aerie knows every request field of the clients' own servers, and takes its default.

Reads the classes of the installed OpenAI client, vLLM and SGLang from their sources; nothing of
them is imported.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

from checks import Checks, conclude

from aerie.server.fields import ChatRequest, CompletionRequest, Strict
from aerie.server.neutral import is_neutral
from aerie.server.sglang import GenerateRequest, SglangSampling

PACKAGES = Path(sysconfig.get_path("purelib"))
OPENAI, VLLM = "openai/types", "vllm/entrypoints/openai"
SGLANG = "sglang/srt/entrypoints/openai/protocol.py"
# (file, class): where its fields arrive here
PROTOCOLS: dict[tuple[str, str], type[Strict]] = {
    (f"{OPENAI}/completion_create_params.py", "CompletionCreateParamsBase"): CompletionRequest,
    (f"{OPENAI}/chat/completion_create_params.py", "CompletionCreateParamsBase"): ChatRequest,
    (f"{VLLM}/completion/protocol.py", "CompletionRequest"): CompletionRequest,
    (f"{VLLM}/chat_completion/protocol.py", "ChatCompletionRequest"): ChatRequest,
    (SGLANG, "CompletionRequest"): CompletionRequest,
    (SGLANG, "ChatCompletionRequest"): ChatRequest,
    (SGLANG, "PDRoutingFields"): ChatRequest,
    ("sglang/srt/managers/io_struct.py", "GenerateReqInput"): GenerateRequest,
    ("sglang/srt/sampling/sampling_params.py", "SamplingParams"): SglangSampling,
}
# SGLang's own bookkeeping in the same class, "not API-facing" by its comment.
INTERNAL = {
    "ebnf_full_assistant",
    "is_normalized",
    "stop_regex_max_len",
    "stop_regex_strs",
    "stop_str_max_len",
    "stop_strs",
}


def fields(path: str, name: str) -> dict[str, ast.expr | None]:
    """Annotated names of a class, with their defaults."""
    tree = ast.parse((PACKAGES / path).read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    (found,) = (node for node in classes if node.name == name)
    entries = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    named = {node.target.id: node.value for node in entries if isinstance(node.target, ast.Name)}
    return {name: value for name, value in named.items() if not name.startswith("_")}


def default(value: ast.expr | None) -> object:
    """What a field is when nothing is said, as far as it is written down; else null."""
    if isinstance(value, ast.Call):
        given = [keyword.value for keyword in value.keywords if keyword.arg == "default"]
        value = (given or value.args or [None])[0]
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return None


def check(path: str, name: str, form: type[Strict]) -> tuple[str, object]:
    """Fields that are unknown here, or whose default is refused."""
    own = {n: v for n, v in fields(path, name).items() if n not in form.model_fields}
    unknown = sorted(own.keys() - form.neutral.keys() - INTERNAL)
    refused = [
        field
        for field in own.keys() & form.neutral.keys()
        if not is_neutral(default(own[field]), form.neutral[field])
    ]
    what = f"{path} {name}: {len(own)} fields that are not honoured"
    problem = f"unknown {unknown}, default refused {refused}"
    return (what, "all known, defaults taken") if not unknown + refused else (problem, False)


def main() -> None:
    checks: Checks = [check(*place, form) for place, form in PROTOCOLS.items()]
    conclude(checks)


if __name__ == "__main__":
    main()
