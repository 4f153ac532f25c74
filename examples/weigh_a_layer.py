"""Ask K3 how much a new layer of draft nodes would add, on two backends."""

import numpy as np

from aerie.kernels import catalogue, load

card = catalogue()["calculate_work_deltas"]
print(f"{card.number} {card.name}: {card.summary}\n")

# Two requests; five verified nodes so far, then the three best candidates of the new layer.
scores = np.array(
    [
        [1.0, 0.6, 0.3, 0.2, 0.1, 0.40, 0.15, 0.05],
        [1.0, 0.9, 0.8, 0.7, 0.6, 0.65, 0.10, 0.01],
    ],
    np.float32,
)
for backend in ("reference", "pytorch"):
    result = load(backend)["calculate_work_deltas"](work_scores=scores, node_top_k=3, verify_num=6)
    gains = ", ".join(f"{float(gain):.3f}" for gain in result.G)
    print(f"{backend:>9}: expected extra tokens for 0, 1, 2, 3 new nodes: {gains}")
