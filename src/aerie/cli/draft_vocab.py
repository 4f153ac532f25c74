"""`aerie draft-vocab`: count tokens, slice a draft head to the frequent ones, report the cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.checks import Json, amount, count, out_file, out_folder
from aerie.cli.output import console, finish, integers, read_text

if TYPE_CHECKING:
    from torch import Tensor

    from aerie.models.decoder import Decoder
    from aerie.text.tokenizer import Tokenizer

app = typer.Typer(
    help="Build, apply and judge smaller draft vocabularies; output tokens never change.",
    no_args_is_help=True,
)

Model = Annotated[Path, typer.Option(help="Directory of the target, with its tokenizer.json.")]
Draft = Annotated[Path, typer.Option(help="Directory of the EAGLE-3 head, in any dialect.")]
Text = Annotated[list[Path], typer.Option(help="Text file; may be given several times.")]
Counts = Annotated[Path, typer.Option(help="Token-count file of `build`.")]
Sizes = Annotated[str, typer.Option(help="Numbers of ids, such as 8192,16384.")]

PROMPT_TOKENS, PROMPT_EVERY, MOST_PROMPTS = 64, 512, 64


@app.command("build")
def build(
    model: Model,
    text: Text,
    out: Annotated[Path, out_file(help="Token-count file to write (JSON).")],
    written: Annotated[
        int,
        count(
            0,
            "Count this many tokens the target writes behind each prompt cut "
            "from the text; 0 counts the text itself.",
        ),
    ] = 0,
    temperature: Annotated[float, amount(0.0, "Of written text; 0 is greedy.")] = 0.0,
    sizes: Sizes = "8192,16384,32768",
    as_json: Json = False,
) -> None:
    """Count tokens of text files, or of what the target writes behind prompts cut from them."""
    from aerie.models.draft_vocabulary import choose_ids, count_ids, save_counts
    from aerie.models.geometry import read_geometry
    from aerie.models.written_text import Writing, continue_texts
    from aerie.text.tokenizer import load_tokenizer

    wanted = integers(sizes, "--sizes")
    tokenizer, vocab_size = load_tokenizer(model), read_geometry(model).vocab_size
    names = ", ".join(path.name for path in text)
    if written:
        prompts = _prompts(tokenizer, text)
        texts = continue_texts(_load(model), prompts, Writing(written, temperature))
        own = [t[len(p) :].tolist() for t, p in zip(texts, prompts, strict=True)]
        how = "greedy" if not temperature else f"at temperature {temperature:g}"
        counts = count_ids(own, vocab_size, f"written by the target ({how}) behind {names}")
    else:
        counts = count_ids((_encode(tokenizer, path) for path in text), vocab_size, names)
    save_counts(out, counts, tokenizer.eos_ids)
    rows = []
    for size in (size for size in wanted if size <= vocab_size):
        coverage = counts.coverage(choose_ids(counts, size, tokenizer.eos_ids))
        rows.append({"size": size, "coverage": coverage})
        console().print(f"{size} ids cover {coverage:.4f} of {counts.n_tokens} tokens")
    console().print(f"end tokens {list(tokenizer.eos_ids)} are always kept; counts in {out}")
    finish({"ok": True, "n_tokens": counts.n_tokens, "sizes": rows, "out": str(out)}, as_json)


@app.command("apply")
def apply(
    model: Model,
    draft: Draft,
    counts: Counts,
    out: Annotated[Path, out_folder(help="Directory of the sliced head.")],
    size: Annotated[int, count(1, "Ids to keep.")] = 16384,
    dialect: Annotated[str, typer.Option(help="specforge, speculators or modelopt.")] = "specforge",
    as_json: Json = False,
) -> None:
    """Write a head whose LM head and maps are sliced to the most frequent ids."""
    import torch

    from aerie.attention import pytorch
    from aerie.models.draft_vocabulary import choose_ids, read_counts, slice_normal
    from aerie.models.eagle3.blueprint import TargetSizes
    from aerie.models.eagle3.convert import read_normal, write_head
    from aerie.models.eagle3.export import ExportDetails
    from aerie.models.eagle3.names import DRAFT_TO_TARGET
    from aerie.models.eagle3.vocabulary import target_ids
    from aerie.models.load import LoadOptions, load_decoder

    # As stored: nothing is multiplied here.
    target = load_decoder(model, pytorch.prepare, LoadOptions())
    geometry = target.geometry
    sizes = TargetSizes(geometry.n_layers, geometry.hidden_size, geometry.vocab_size)
    head = read_normal(draft, sizes)
    offsets = head.tensors.get(DRAFT_TO_TARGET)
    known = torch.arange(geometry.vocab_size) if offsets is None else target_ids(offsets)
    token_counts, forced = read_counts(counts)
    ids = choose_ids(token_counts, size, _known_ends(forced, known), known)
    sliced = slice_normal(head, ids, _output(target))
    details = ExportDetails(geometry.max_positions, str(model), geometry.architecture)
    write_head(out, sliced, dialect, details)
    coverage = token_counts.coverage(ids)
    console().print(f"{size} ids, {coverage:.4f} of the counted tokens -> {out}")
    finish({"ok": True, "size": size, "coverage": coverage, "out": str(out)}, as_json)


@app.command("report")
def report(
    model: Model,
    draft: Draft,
    counts: Counts,
    text: Text,
    sizes: Sizes = "8192,16384,32768",
    out: Annotated[Path | None, out_folder(help="Folder for the table, JSON and Markdown.")] = None,
    as_json: Json = False,
) -> None:
    """Measure agreement and acceptance of a head with its full and with sliced vocabularies."""
    from aerie.attention import pytorch
    from aerie.bench.provenance import provenance
    from aerie.models import draft_vocabulary_report as table
    from aerie.models.draft_vocabulary import choose_ids, head_ids, read_counts
    from aerie.models.eagle3.load import load_head
    from aerie.models.eagle3.resolve import HeadOptions
    from aerie.text.tokenizer import load_tokenizer

    target = _load(model)
    head = load_head(draft, target, pytorch.prepare, HeadOptions())
    known = head_ids(head)
    token_counts, forced = read_counts(counts)
    kept = _known_ends(forced, known)
    wanted = [size for size in integers(sizes, "--sizes") if size < known.shape[0]]
    vocabularies = [choose_ids(token_counts, size, kept, known) for size in sorted(wanted)[::-1]]
    settings = table.ReportSettings()
    prompts = _prompts(load_tokenizer(model), text)
    rows = table.report(target, head, vocabularies, prompts, settings)
    values, markdown = table.as_json(rows, settings), table.as_markdown(rows, settings)
    origin = provenance("cpu")
    values |= {"counts": token_counts.source, "prompts": len(prompts), "provenance": origin}
    markdown += (
        f"\nMeasured on {len(prompts)} prompts, {origin['device']}, commit `{origin['commit']}`, "
        f"torch {origin['torch']}, {origin['date']}.\n"
    )
    console().print(markdown, markup=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "draft_vocabulary.json").write_text(json.dumps(values, indent=2) + "\n")
        (out / "draft_vocabulary.md").write_text(markdown)
    finish({"ok": True, **values}, as_json)


def _known_ends(forced: Sequence[int], known: Tensor) -> list[int]:
    """End tokens the head can say; a head was trained without the others and stays so."""
    kept = sorted(set(forced) & set(known.tolist()))
    for lost in sorted(set(forced) - set(kept)):
        console().print(f"[yellow]warning[/] the head cannot draft end token {lost}")
    return kept


def _load(model: Path) -> Decoder:
    """The target in float32: half precision is slow on a CPU, and on some it is not there."""
    import torch

    from aerie.attention import pytorch
    from aerie.models.load import LoadOptions, load_decoder

    return load_decoder(model, pytorch.prepare, LoadOptions(dtype=torch.float32))


def _output(target: Decoder) -> Tensor:
    from aerie.errors import UsageError
    from aerie.models.linear import DenseLinear

    if not isinstance(target.head, DenseLinear):
        raise UsageError("the target's LM head is not plainly dense")
    return target.head.weight


def _encode(tokenizer: Tokenizer, path: Path) -> list[int]:
    return tokenizer.encode(read_text(path), add_special_tokens=False)


def _prompts(tokenizer: Tokenizer, paths: list[Path]) -> list[Tensor]:
    """Windows of text, spread over the files, at most MOST_PROMPTS of them."""
    import torch

    from aerie.errors import UsageError

    found = []
    for path in paths:
        ids = _encode(tokenizer, path)
        found += [ids[i : i + PROMPT_TOKENS] for i in range(0, len(ids), PROMPT_EVERY)]
    found = [ids for ids in found if ids]
    if not found:
        raise UsageError("the text files hold no tokens; give at least one with text")
    step = -(-len(found) // MOST_PROMPTS)
    return [torch.tensor(ids) for ids in found[::step]]
