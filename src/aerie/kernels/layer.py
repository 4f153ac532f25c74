"""R7 as K1, K2 and K3 one after the other, for backends without a kernel of a whole layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aerie.kernels.call import Outputs
from aerie.kernels.cards.growth import CumulativeState, DraftLayer

Run = Callable[..., Outputs]

_GIVEN = {port.name for port in DraftLayer.ports if port.kind != "out"}
# Arrays of K2 that R7 hands on as they are: without a map candidates are target ids already.
_HANDED_ON = tuple(port.name for port in CumulativeState.ports if port.name in _GIVEN)


def checked_layer(call: DraftLayer, check: Run) -> Outputs:
    """R7's refusals by a NumPy backend's check of K2: there is no order of candidates to check."""
    return check(
        topk_tokens=call.topk_tokens,
        sort_layer_indices=call.frontier_indexs[:, :0],
        frontier_indexs=call.frontier_indexs,
        cumu_count=call.cumu_count,
    )


def grown_layer(call: DraftLayer, score: Run, store: Run, weigh: Run) -> Outputs:
    """R7's results by a backend's K1, K2 and K3, refused requests included; no G if not weighed."""
    layer = score(
        topk_probas=call.topk_probas,
        topk_tokens=call.topk_tokens,
        last_layer_scores=call.last_layer_scores,
        input_hidden=call.input_hidden,
        cumu_count=call.cumu_count,
    )
    state = store(
        **{name: getattr(call, name) for name in _HANDED_ON},
        curr_layer_scores=layer["curr_layer_scores"],
        sort_layer_scores=layer["sort_layer_scores"],
        sort_layer_indices=layer["sort_layer_indices"],
        cumu_count=call.cumu_count,
        verify_num=call.verify_num,
        fed_count=call.fed_count,
        status=call.status,
    )
    outputs = {
        "node_ids": layer["cache_topk_indices"],
        "output_scores": state["output_scores"],
        "output_tokens": state["output_tokens"],
        "output_hidden": layer["output_hidden"],
        "output_tree_mask": state["output_tree_mask"],
    }
    if not call.weigh:
        return outputs
    top_k = state["output_scores"].shape[1]
    work = {"work_scores": state["work_scores"], "node_top_k": top_k}
    return {**outputs, **weigh(**work, verify_num=call.verify_num)}


def numpy_layer(call: DraftLayer, score: Run, store: Run, weigh: Run) -> Outputs:
    """The same of a NumPy backend, finished: no G is 0, and a refused request has no nodes."""
    outputs = grown_layer(call, score, store, weigh)
    outputs.setdefault("G", np.zeros(outputs["output_scores"].shape[1] + 1, np.float32))
    if call.status.any():
        outputs["node_ids"][call.status != 0] = -1
        outputs["output_hidden"][call.status != 0] = 0
    return outputs
