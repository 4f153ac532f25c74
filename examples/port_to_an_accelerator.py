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

params = SamplingParams(max_tokens=32)
tokens = {
    backend: Engine.load(backend=backend).generate("def add(a, b):\n", params)[0].token_ids
    for backend in ("reference", NAME)
}
same = "the same tokens" if tokens["reference"] == tokens[NAME] else "DIFFERENT tokens"
print(f"engine: {same}; {CHIP.n_uploaded} bytes went to the chip, {CHIP.n_downloaded} came back")
