"""A backend from outside aerie: checked against the definition, then it runs the whole engine."""

from toy_accelerator import BACKEND, CHIP, KERNELS

from aerie import Engine, SamplingParams
from aerie.kernels import load
from aerie.kernels.cases import cases_for
from aerie.parity import run_parity

NAME = "toy_accelerator:BACKEND"  # as for `aerie parity --backend` and `aerie generate --backend`
print(f"{BACKEND.name}: {BACKEND.summary}")

kernels, reference = load(NAME), load("reference")
for kernel in KERNELS:
    report = run_parity(kernels, reference, cases_for(kernel))
    print(f"{kernel}: {len(report.results) - len(report.failed)} of {len(report.results)} equal")

# Requests that end at different times: the chip finds those that still run (K13).
prompts = ["def add(a, b):\n", "import os\n", "class Stack:\n"]
before = CHIP.n_uploaded
tokens = {}
for backend in ("reference", NAME):
    engine = Engine.load(backend=backend, speculation={"top_k": 2, "depth": 3, "nodes": 6})
    ids = [
        engine.submit(prompt, SamplingParams(max_tokens=8 * (number + 1)))
        for number, prompt in enumerate(prompts)
    ]
    while not engine.core.is_idle:
        engine.step()
    tokens[backend] = [engine.collect(request_id).token_ids for request_id in ids]
same = "the same tokens" if tokens["reference"] == tokens[NAME] else "DIFFERENT tokens"
print(f"engine: {same}; {CHIP.n_uploaded - before} bytes went to the chip")
