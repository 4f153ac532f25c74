"""Generates docs/kernels.md and docs/kernel_abi.json from the cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aerie.kernels.card import REQUIRED, Card, Port
from aerie.kernels.catalogue import catalogue
from aerie.kernels.status import MEANINGS, Status

_INTRODUCTION = """# The tree kernels

Generated from the cards in `src/aerie/kernels/cards/` by `python -m aerie.kernels.document`.

```python
from aerie.kernels import catalogue, load

kernels = load("reference")  # or load("pytorch", device="cuda")
result = kernels["calculate_work_deltas"](work_scores=scores, node_top_k=4, verify_num=16)
print(result.G, catalogue()["calculate_work_deltas"].summary)
```

`E` in a formula is the width of a hidden element in bytes. Every backend takes NumPy arrays and
tensors of its device, and on a CPU shares their memory. Every call is checked before anything is
written, by the same checks for all backends:

| what | else |
|---|---|
| names of the card, in combinations it allows | `UsageError`, `UnknownNameError` |
| plain arrays: `numpy.ndarray`, `memmap`, strided `torch.Tensor` | `KernelArgumentError` |
| scalars of Python: `int`, `bool`, tuples of `int` | `KernelArgumentError` |
| dtypes of the card, native byte order; where it lists several, one for all | `KernelDtypeError` |
| shapes, scalars and limits | `KernelBoundsError` |
| on the backend's device | `KernelArgumentError` |
| written in place: writable, whole and no negative strides, entries apart | `KernelArgumentError` |
| written in place: no memory of another argument | `KernelArgumentError` |

Arrays that are only read may be read-only, overlap, and lie in memory in any way. Values may be any
of their dtype: where a card names neither a refusal nor a rule for NaN, infinities or the ends of
int64, they are copied or compared like any other. Booleans are 0 and 1, as NumPy and PyTorch make
them. Refusals that depend on data are tried in the order listed; on a CPU the first one raises
before anything is written, elsewhere (or with `load(..., data_errors="status")`) the request's
status word says so and its state is unchanged. Of several offending values a backend may name any.
"""


def render_markdown() -> str:
    """The text of docs/kernels.md."""
    parts = [_INTRODUCTION, _status_table()]
    parts += [_card_section(card) for card in catalogue().values()]
    return "\n".join(parts)


def render_abi() -> str:
    """The text of docs/kernel_abi.json: ordered, named, typed ports of every card, one a line."""
    cards = [f'"{name}": {_abi_text(_card_abi(card))}' for name, card in catalogue().items()]
    return "{\n" + ",\n".join(cards) + "\n}\n"


def _abi_text(abi: dict[str, Any]) -> str:
    ports = ",\n".join(f"  {json.dumps(port)}" for port in abi["ports"])
    fields = {name: json.dumps(value) for name, value in abi.items()}
    fields["ports"] = f"[\n{ports}\n ]"
    return "{" + ",".join(f'\n "{name}": {text}' for name, text in fields.items()) + "}"


def _card_abi(card: Card) -> dict[str, Any]:
    return {
        "number": card.number,
        "version": card.version,
        "scalars": [[scalar.name, scalar.kind] for scalar in card.scalars],
        "ports": [
            [port.kind, port.name, "|".join(port.dtypes), list(port.shape)] for port in card.ports
        ],
        "refusals": [refusal.status.name for refusal in card.refusals],
    }


def _status_table() -> str:
    lines = ["## Status words", ""]
    lines += ["| word | name | raises on a CPU | meaning |", "|---|---|---|---|"]
    for status, meaning in MEANINGS.items():
        name = meaning.error.__name__
        lines.append(f"| {int(status)} | `{Status(status).name}` | `{name}` | {meaning.sentence} |")
    return "\n".join(lines) + "\n"


def _card_section(card: Card) -> str:
    lines = [f"## {card.number} `{card.name}`", "", f"{card.summary}", ""]
    lines += ["| | name | dtype | shape | meaning |", "|---|---|---|---|---|"]
    lines += [_scalar_row(card, index) for index in range(len(card.scalars))]
    lines += [_port_row(port) for port in card.ports]
    lines += ["", f"- Ties: {card.ties}"]
    lines.append(f"- Tolerance: {_tolerance(card)}")
    axes = ", ".join(f"{a.name} {a.low}..{a.high} ({a.meaning})" for a in card.axes)
    lines.append(f"- Axes: {axes}")
    for limit in card.limits:
        lines.append(f"- Limit: `{limit.value.text} <= {limit.bound.text}` ({limit.meaning})")
    if card.assumes:
        lines.append(f"- Assumes: {card.assumes}")
    for refusal in card.refusals:
        lines.append(
            f"- Refuses: `{refusal.status.name}` {refusal.meaning} (limit `{refusal.limit}`)"
        )
    if card.alternatives:
        groups = " or ".join(" + ".join(f"`{n}`" for n in group) for group in card.alternatives)
        lines.append(f"- Exactly one of: {groups}")
    cost = card.cost
    lines.append(f"- Bytes read `{cost.bytes_read.text}`, written `{cost.bytes_written.text}`")
    lines.append(f"- Operations `{cost.operations.text}`")
    lines.append(f"- Card version {card.version}, family `{card.family}`")
    return "\n".join(lines) + "\n"


def _scalar_row(card: Card, index: int) -> str:
    scalar = card.scalars[index]
    default = "" if scalar.default is REQUIRED else f", default {scalar.default}"
    span = f"{scalar.low}..{scalar.high}"
    return f"| host | `{scalar.name}` | {scalar.kind} | {span}{default} | {scalar.meaning} |"


def _port_row(port: Port) -> str:
    kind = {"in": "in", "inout": "in place", "out": "out"}[port.kind]
    kind += " (optional)" if port.optional else ""
    shape = "[" + ", ".join(port.shape) + "]"
    fill = f"; unused: {port.fill}" if port.kind == "out" and port.fill else ""
    dtypes = " / ".join(port.dtypes)
    return f"| {kind} | `{port.name}` | {dtypes} | {shape} | {port.meaning}{fill} |"


def _tolerance(card: Card) -> str:
    if not card.tolerances:
        return "exact in every dtype"
    parts = [
        f"`{name}` {'each dtype' if ulps.of_largest else 'float32'} {ulps.cpu} ulp"
        f"{' of the largest entry' if ulps.of_largest else ''} on CPU and HLS, {ulps.gpu} on a GPU"
        for name, ulps in card.tolerances.items()
    ]
    return "; ".join(parts) + "; everything else exact"


def main() -> None:
    """Write both files below the current folder's docs/."""
    Path("docs/kernels.md").write_text(render_markdown(), encoding="utf-8")
    Path("docs/kernel_abi.json").write_text(render_abi(), encoding="utf-8")


if __name__ == "__main__":
    main()
