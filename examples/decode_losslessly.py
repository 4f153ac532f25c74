"""Decode with and without speculation: the same tokens, a fraction of the target passes."""

from aerie import Engine, SamplingParams

params = SamplingParams(max_tokens=48, temperature=0.7, seed=2026)
plain = Engine.load(speculation={"method": "none"})
fast = Engine.load(speculation={"top_k": 3, "depth": 4, "nodes": 12})
prompts = ["def read_lines(path):\n", "class Stack:\n", "import argparse\n"]

for prompt, one, other in zip(
    prompts, plain.generate(prompts, params), fast.generate(prompts, params), strict=True
):
    same = "the same tokens" if one.token_ids == other.token_ids else "DIFFERENT tokens"
    passes = (one.statistics.target_passes, other.statistics.target_passes)
    print(f"{prompt!r}: {same}, {passes[0]} target passes plain, {passes[1]} with a tree")

print(prompts[0] + fast.generate(prompts[0], params)[0].text)
