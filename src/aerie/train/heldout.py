"""The held-out prompts: text cut at line ends from files kept out of training, with sources."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from aerie.errors import UsageError
from aerie.train.corpus import Corpus, Stream
from aerie.train.tokenizer import END_ID

PROMPTS_FILE = "prompts.jsonl.gz"
LICENCES_FILE = "licences.json"

SHORT, LONGEST = 512, 32_768
BUCKETS = (SHORT, 4096, 16_384, LONGEST)
# Prompts in the repository, per bucket: the first of those that are evaluated, for `aerie train
# report` to compute again. Benchmarks read documents of their own (aerie.text.heldout).
SHIPPED = {SHORT: 128, LONGEST: 4}
PLACES, PLACES_AT_ONCE = 1024, 32  # candidate ends per bucket, and how many are cut together
MARGIN = 64  # tokens that must follow in the file: a prompt is never cut at its very end


@dataclass(frozen=True)
class Prompt:
    """A context: `text` encodes, behind END_ID, to `n_tokens - 1` tokens."""

    name: str
    bucket: int
    text: str
    n_tokens: int
    sources: tuple[tuple[str, str], ...]  # (package, file), in the order of the text


@dataclass(frozen=True, eq=False)
class _Cutter:
    """What cutting prompts needs to know of the stream."""

    stream: Stream
    tokenizer: Tokenizer
    packages: tuple[str, ...]
    is_line_end: NDArray[np.bool_]  # [tokens], the token ends a line


def make_prompts(corpus: Corpus, bucket: int, count: int) -> list[Prompt]:
    """Up to `count` prompts of at most `bucket` tokens, their ends spread over the whole stream.

    A short prompt stays inside one file; a longer one may run over the files before it, in the
    stream's order (package, path), so that its parts are related. Contexts of long prompts
    overlap where the stream is short; their ends are all different.
    """
    cutter = _cutter(corpus)
    ends = _possible_ends(cutter, bucket)
    if not ends.size:
        return []
    places = np.unique(np.linspace(0, ends.size - 1, PLACES).astype(int))
    # A fixed shuffle: the first `count` are spread over the stream whatever the count, and a
    # smaller set is the beginning of a larger one.
    shuffled = np.random.default_rng(bucket).permutation(ends[places])
    prompts: list[Prompt] = []
    with ThreadPoolExecutor() as pool:
        for first in range(0, shuffled.size, PLACES_AT_ONCE):
            some = shuffled[first : first + PLACES_AT_ONCE]
            cut = pool.map(lambda end: _cut(cutter, int(end), bucket), some)
            prompts += [prompt for prompt in cut if prompt is not None]
            if len(prompts) >= count:
                break
    return [
        replace(prompt, name=f"{bucket}-{number:03d}")
        for number, prompt in enumerate(prompts[:count])
    ]


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a prompt, END_ID first."""
    return [END_ID, *tokenizer.encode(text, add_special_tokens=False).ids]


def save_prompts(corpus: Corpus, prompts: Sequence[Prompt], directory: Path) -> None:
    """Write the prompts (compressed) and the licence of every package they quote."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts)
    # mtime 0: the same prompts are the same bytes.
    (directory / PROMPTS_FILE).write_bytes(gzip.compress(lines.encode("utf-8"), 9, mtime=0))
    quoted = sorted({source for prompt in prompts for source in prompt.sources})
    licences = [
        {
            "package": package.name,
            "version": package.version,
            "licence": package.licence,
            "files": [path for name, path in quoted if name == package.name],
        }
        for package in corpus.packages
        if any(name == package.name for name, _ in quoted)
    ]
    text = json.dumps({"packages": licences}, indent=1) + "\n"
    (directory / LICENCES_FILE).write_text(text, encoding="utf-8")


def load_prompts(directory: Path) -> list[Prompt]:
    """The prompts of a directory `save_prompts` wrote."""
    path = directory / PROMPTS_FILE
    if not path.is_file():
        raise UsageError(f"{path} does not exist; `aerie train pair` writes it")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
    return [_prompt(json.loads(line)) for line in lines]


def _prompt(values: dict[str, object]) -> Prompt:
    sources = values.pop("sources")
    assert isinstance(sources, list)
    return Prompt(**values, sources=tuple((p, f) for p, f in sources))  # type: ignore[arg-type]


def _cutter(corpus: Corpus) -> _Cutter:
    tokenizer = Tokenizer.from_str(corpus.tokenizer_json)
    ends = np.array(
        [tokenizer.decode([i]).endswith("\n") for i in range(tokenizer.get_vocab_size())]
    )
    stream = corpus.heldout
    names = tuple(package.name for package in corpus.packages)
    return _Cutter(stream, tokenizer, names, ends[stream.tokens])


def _possible_ends(cutter: _Cutter, bucket: int) -> NDArray[np.int64]:
    """Positions just behind a line end with enough text in front, and some of the file behind."""
    stream = cutter.stream
    ends = np.flatnonzero(cutter.is_line_end) + 1
    owner = np.searchsorted(stream.starts, ends - 1, side="right") - 1
    limits = np.append(stream.starts[1:], stream.tokens.shape[0])
    room = limits[owner] - ends >= MARGIN
    # A short prompt lies in one file; a long one needs its last file to be well under way.
    needed = bucket if bucket <= SHORT else SHORT // 2
    inside = ends - stream.starts[owner] >= needed
    return ends[room & inside & (ends >= bucket)].astype(np.int64)


def _cut(cutter: _Cutter, end: int, bucket: int) -> Prompt | None:
    """The prompt that ends at `end`, or None if its text would be tokenised differently."""
    stream = cutter.stream
    earliest = end - bucket + 1  # one token of the bucket is END_ID
    # Begin behind a line end or at a document's start, so that the text stands on its own.
    line_ends = np.flatnonzero(cutter.is_line_end[earliest : end - 1])
    if not line_ends.size:
        return None
    start = earliest + int(line_ends[0]) + 1
    tokens = stream.tokens[start:end].tolist()
    if tokens and tokens[0] == END_ID:
        tokens = tokens[1:]
    text = cutter.tokenizer.decode(tokens, skip_special_tokens=False)
    if encode_prompt(cutter.tokenizer, text)[1:] != tokens:
        return None
    first, last = np.searchsorted(stream.starts, [start, end - 1], side="right") - 1
    sources = tuple(
        (cutter.packages[document.package], document.path)
        for document in stream.documents[first : last + 1]
    )
    return Prompt("", bucket, text, len(tokens) + 1, sources)
