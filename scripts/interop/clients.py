"""The clients of `make interop`: how each is run, and what its output must say to have passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

N_REQUESTS = 8
N_AT_A_TIME = 4
N_INPUT, N_OUTPUT = 48, 24  # tokens

SGLANG_BACKENDS = (
    "sglang",
    "sglang-native",
    "sglang-oai",
    "sglang-oai-chat",
    "vllm",
    "vllm-chat",
    "lmdeploy",
    "lmdeploy-chat",
)
DIALECTS = ("hermes", "llama3_json", "harmony")


@dataclass(frozen=True)
class Client:
    """One run of one client. `{url}`, `{name}`, `{tokenizer}` and `{scratch}` are filled in.

    Exit status 0 is not enough: some clients end well when every request has failed.
    """

    name: str
    program: str  # python, or a script of the clients' environment
    arguments: str
    packages: tuple[str, ...]  # whose versions the transcript states
    proofs: tuple[str, ...]  # regular expressions, all of which the output matches
    acceptance: str = ""  # one whose group is the acceptance length, where the client prints it
    environment: Mapping[str, str] = field(default_factory=lambda: {"HF_HUB_OFFLINE": "1"})
    dialect: str = ""  # of the scripted model that it talks to; none: to the built-in pair


def _sglang(backend: str) -> Client:
    is_read = backend.startswith("sglang")  # of /server_info
    acceptance = r"Accept length: +([\d.]+)"
    return Client(
        name=f"sglang-bench-{backend}",
        program="python",
        arguments="-m sglang.benchmark.serving"
        f" --backend {backend} --base-url {{url}} --model {{tokenizer}}"
        " --served-model-name {name} --dataset-name random-ids"
        f" --random-input-len {N_INPUT} --random-output-len {N_OUTPUT} --random-range-ratio 1"
        f" --num-prompts {N_REQUESTS} --max-concurrency {N_AT_A_TIME} --flush-cache"
        f" --disable-tqdm --output-file {{scratch}}/{backend}.jsonl",
        packages=("sglang", "transformers"),
        proofs=(rf"Successful requests: +{N_REQUESTS}\b", *([acceptance] if is_read else [])),
        acceptance=acceptance if is_read else "",
    )


def _vllm(backend: str, endpoint: str) -> Client:
    acceptance = r"Acceptance length: +([\d.]+)"
    return Client(
        name=f"vllm-bench-{backend}",
        program="vllm",
        arguments=f"bench serve --backend {backend} --base-url {{url}} --endpoint {endpoint}"
        " --model {name} --tokenizer {tokenizer} --dataset-name random"
        f" --random-input-len {N_INPUT} --random-output-len {N_OUTPUT}"
        f" --num-prompts {N_REQUESTS} --max-concurrency {N_AT_A_TIME}"
        " --ignore-eos --temperature 0 --disable-tqdm",
        packages=("vllm", "transformers"),
        proofs=(rf"Successful requests: +{N_REQUESTS}\b", r"Failed requests: +0\b", acceptance),
        acceptance=acceptance,
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )


def _guidellm(kind: str, path: str) -> Client:
    # Of the table of runs: five columns of time, then requests completed, incomplete, in error.
    row = rf"concurrent@{N_AT_A_TIME} +(?:\|[^|\n]*){{5}}\| {N_REQUESTS} +\| 0 +\| 0 +\|"
    return Client(
        name=f"guidellm-{kind}",
        program="guidellm",
        arguments="run"
        f" --backend kind=openai_http,target={{url}},model={{name}},request_format={path}"
        " --tokenizer kind=huggingface_auto,model={tokenizer}"
        f" --profile kind=concurrent,streams={N_AT_A_TIME}"
        f" --constraint kind=max_requests,count={N_REQUESTS}"
        f" --data kind=synthetic_text,prompt_tokens={N_INPUT},output_tokens={N_OUTPUT}"
        " --output kind=console --disable-progress",
        packages=("guidellm", "transformers"),
        proofs=(row,),
    )


def _aiperf(endpoint: str) -> Client:
    acceptance = r"Token-Weighted Acceptance Length +│ +([\d.]+)"
    return Client(
        name=f"aiperf-{endpoint}",
        program="aiperf",
        arguments=f"profile --model {{name}} --tokenizer {{tokenizer}} --url {{url}}"
        f" --endpoint-type {endpoint} --streaming --concurrency {N_AT_A_TIME}"
        f" --request-count {N_REQUESTS} --synthetic-input-tokens-mean {N_INPUT}"
        f" --output-tokens-mean {N_OUTPUT} --extra-inputs ignore_eos:true --random-seed 1"
        f" --ui none --artifact-dir {{scratch}}/aiperf-{endpoint}",
        packages=("aiperf", "transformers"),
        proofs=(
            rf"Request Count \(requests\) +│ +{N_REQUESTS}\.00",
            r"Request Error Rate \(%\) +│ +0\.00",
            acceptance,
        ),
        acceptance=acceptance,
        environment={},  # offline it refuses a tokenizer in a folder
    )


def _tools(name: str, dialect: str, *packages: str) -> Client:
    return Client(
        name=f"{name}-tools-{dialect}",
        program="python",
        arguments=f"scripts/interop/{name}_tools.py {{url}}/v1 {{name}}",
        packages=packages,
        proofs=(r"all \d+ checks passed",),
        dialect=dialect,
    )


def clients() -> Iterator[Client]:
    """All of them, in the order in which they run."""
    for name, packages in (
        ("openai", ("openai",)),
        ("langchain", ("langchain-openai", "langchain-core", "openai")),
    ):
        yield Client(
            name=name,
            program="python",
            arguments=f"scripts/interop/{name}_client.py {{url}}/v1 {{name}}",
            packages=packages,
            proofs=(r"all \d+ checks passed",),
        )
    yield Client(
        name="known-fields",
        program="python",
        arguments="scripts/interop/known_fields.py",
        packages=("openai", "vllm", "sglang"),
        proofs=(r"all \d+ checks passed",),
        environment={"PYTHONPATH": "src"},
    )
    yield _guidellm("completions", "/v1/completions")
    yield _guidellm("chat", "/v1/chat/completions")
    yield from map(_sglang, SGLANG_BACKENDS)
    yield _vllm("openai", "/v1/completions")
    yield _vllm("openai-chat", "/v1/chat/completions")
    yield _aiperf("completions")
    yield _aiperf("chat")
    for dialect in DIALECTS:
        yield _tools("openai", dialect, "openai")
        yield _tools("langchain", dialect, "langchain-openai", "langchain", "openai")
