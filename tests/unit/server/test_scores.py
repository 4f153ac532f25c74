"""Log-probabilities in four forms: places in the text, alternatives, and what the first has not."""

from typing import Any

import pytest

from aerie.api import Completion, find_pair
from aerie.requests.params import SamplingParams
from aerie.requests.request import Scored, Statistics
from aerie.server.answers import CHAT, COMPLETION, Answer
from aerie.server.fields import ChatRequest, CompletionRequest
from aerie.server.problems import ApiError
from aerie.server.samples import Ask, Piece
from aerie.server.scores import Offsets, prompt_offsets, prompt_pieces, vllm_prompt_logprobs
from aerie.server.sglang import GenerateRequest, SglangAnswer
from aerie.text.tokenizer import Tokenizer, load_tokenizer

TEXT = "x = 'naïve 日本 🦅'\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_pair(None, None)[0])


def scored(ids: tuple[int, ...], n_best: int) -> tuple[Scored, ...]:
    """Made-up values, all different: of each token the best alternative is another one."""
    return tuple(
        Scored(-1.5 - place, tuple((40 + rank, -0.5 - rank - place) for rank in range(n_best)))
        for place in range(len(ids))
    )


def finished(tokenizer: Tokenizer, ask: Ask, ids: tuple[int, ...]) -> Completion:
    params = ask.params
    of_prompt = None
    if params.prompt_logprobs is not None:
        of_prompt = scored(tuple(ask.prompt[1:]), params.prompt_logprobs)
    own = None if params.logprobs is None else scored(ids, params.logprobs)
    text = tokenizer.decode(ids)
    return Completion(text, ids, "length", 0, Statistics(), own, of_prompt)


def pieces(tokenizer: Tokenizer, whole: Completion) -> list[Piece]:
    """The same, two tokens at a time; its text at the end, for characters may be cut."""
    found = []
    for start in range(0, max(len(whole.token_ids), 1), 2):
        ids, own = whole.token_ids[start : start + 2], (whole.logprobs or ())[start : start + 2]
        is_last = start + 2 >= len(whole.token_ids)
        of_prompt = (whole.prompt_logprobs or ()) if start == 0 else ()
        text = whole.text if is_last else ""
        found.append(Piece(0, text, ids, own, start == 0, of_prompt))
    return found


def test_offsets_are_where_tokens_stand(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    found = list(Offsets(tokenizer, 7).push(ids))
    assert found[0] == 7 and found == sorted(found)
    halves = 0
    for token_id, offset in zip(ids, found, strict=True):
        try:
            piece = tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            halves += 1
        else:
            assert TEXT[offset - 7 :].startswith(piece)
    assert halves > 3
    with_start = tokenizer.encode(TEXT)
    assert with_start[0] == tokenizer.bos_id
    assert list(prompt_offsets(tokenizer, with_start, TEXT)) == [0, *(o - 7 for o in found)]
    assert "".join(prompt_pieces(tokenizer, with_start)) == TEXT
    # Within a shorter text no token stands beyond its end.
    assert max(prompt_offsets(tokenizer, ids, TEXT[:4])) == 4


@pytest.mark.parametrize("n_best", [0, 3])
@pytest.mark.parametrize("n_tokens", [0, 1, 5])
def test_a_stream_with_echo_has_the_values_of_the_whole(
    tokenizer: Tokenizer, n_best: int, n_tokens: int
) -> None:
    prompt = tokenizer.encode(TEXT)
    params = SamplingParams(max_tokens=n_tokens, logprobs=n_best, prompt_logprobs=n_best)
    ask = Ask(prompt, params, 0, echoed=TEXT)
    ids = tuple(tokenizer.encode("return näïve ä", add_special_tokens=False)[:n_tokens])
    whole = finished(tokenizer, ask, ids)
    (choice,) = Answer(COMPLETION, "m", (ask,), tokenizer).body([whole])["choices"]
    told = choice["logprobs"]
    assert choice["text"] == TEXT + whole.text
    assert [len(told[name]) for name in ("tokens", "token_logprobs", "text_offset")] == [
        len(prompt) + n_tokens
    ] * 3
    assert told["token_logprobs"][0] is None
    if n_best:
        assert told["top_logprobs"][0] is None
        assert [len(best) for best in told["top_logprobs"][1:]] == [n_best + 1] * (
            len(prompt) + n_tokens - 1
        )
        assert any(name.startswith("bytes:\\x") for name in told["tokens"])
    else:
        assert told["top_logprobs"] is None
    streamed = Answer(COMPLETION, "m", (ask,), tokenizer)
    chunks = [chunk for piece in pieces(tokenizer, whole) for chunk in streamed.chunks(piece)]
    parts = [chunk["choices"][0] for chunk in chunks]
    assert len(parts) == max(1, -(-n_tokens // 2))
    assert "".join(part["text"] for part in parts) == choice["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        if told[name] is not None:
            assert [entry for part in parts for entry in part["logprobs"][name]] == told[name]


def test_echo_alone_says_the_prompt_once(tokenizer: Tokenizer) -> None:
    ask = Ask((5, 6), SamplingParams(max_tokens=4), 0, echoed="ab")
    answer = Answer(COMPLETION, "m", (ask,), tokenizer)
    told = (Piece(0, "", (1,), is_first=True), Piece(0, "c", (2,)))
    choices = [chunk["choices"][0] for piece in told for chunk in answer.chunks(piece)]
    assert [choice["text"] for choice in choices] == ["ab", "c"]
    assert all(choice["logprobs"] is None for choice in choices)


def test_a_chat_lists_its_alternatives(tokenizer: Tokenizer) -> None:
    ask = Ask((5, 6), SamplingParams(max_tokens=4, logprobs=2), 0)
    ids = tuple(tokenizer.encode("ä", add_special_tokens=False))
    whole = finished(tokenizer, ask, ids)
    (choice,) = Answer(CHAT, "m", (ask,), tokenizer).body([whole])["choices"]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "ä"
    for entry, own in zip(content, whole.logprobs or (), strict=True):
        assert entry["logprob"] == own.logprob
        assert [other["logprob"] for other in entry["top_logprobs"]] == [v for _, v in own.top]
        assert entry["top_logprobs"][0].keys() == {"token", "logprob", "bytes"}


def test_vllms_form_names_tokens_and_ranks(tokenizer: Tokenizer) -> None:
    scores = (None, Scored(-2.0, ((7, -0.5), (9, -2.0))), Scored(-3.0, ((7, -0.5), (8, -1.0))))
    first, second, third = vllm_prompt_logprobs(tokenizer, (5, 9, 6), scores, 1)
    assert first is None and second is not None and third is not None
    assert {name: entry["rank"] for name, entry in second.items()} == {"9": 2, "7": 1}
    assert {name: entry["rank"] for name, entry in third.items()} == {"6": None, "7": 1}
    assert third["6"]["logprob"] == -3.0 and third["6"]["decoded_token"]


def test_sglangs_form_begins_where_it_was_asked_to() -> None:
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1)
    asks = (Ask((5, 6, 7, 8), params, 0),)
    own = [Scored(-float(place), ((90 + place, -0.25),)) for place in range(1, 5)]
    whole = Completion("t", (9,), "length", 0, Statistics(), (own[3],), tuple(own[:3]))
    told = SglangAnswer(("a",), asks, True, 1).body([whole])["meta_info"]
    assert told["input_token_logprobs"] == [[None, 6, None], [-2.0, 7, None], [-3.0, 8, None]]
    assert told["input_top_logprobs"] == [None, [[-0.25, 92, None]], [[-0.25, 93, None]]]
    assert told["output_token_logprobs"] == [[-4.0, 9, None]]
    assert told["output_top_logprobs"] == [[[-0.25, 94, None]]]
    bare = SglangAnswer(("a",), asks, True).body([whole])["meta_info"]
    assert "input_token_logprobs" not in bare and bare["output_token_logprobs"]


@pytest.mark.parametrize(
    ("said", "n_best", "n_best_of_prompt"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 20, "echo": True}, 20, 20),
        ({"echo": True}, None, None),
        ({"echo": True, "max_tokens": 0}, None, 0),
        ({"max_tokens": 0, "logprobs": 3}, 3, 0),
        ({"prompt_logprobs": 4}, None, 4),
        ({"prompt_logprobs": 4, "echo": True, "logprobs": 1}, 1, 4),
    ],
    ids=str,
)
def test_a_completion_is_scored_as_far_as_it_asks(
    said: dict[str, Any], n_best: int | None, n_best_of_prompt: int | None
) -> None:
    asked = CompletionRequest.model_validate({"prompt": "a", **said})
    asked.check()
    params = asked.params(16 if asked.max_tokens is None else asked.max_tokens)
    assert (params.logprobs, params.prompt_logprobs) == (n_best, n_best_of_prompt)


CHAT_BODY = {"messages": [{"role": "user", "content": "a"}]}


def test_what_does_not_go_together_is_refused_by_name() -> None:
    streamed = CompletionRequest.model_validate(
        {"prompt": "a", "stream": True, "prompt_logprobs": 1}
    )
    alone = ChatRequest.model_validate({**CHAT_BODY, "top_logprobs": 1})
    bare = GenerateRequest.model_validate({"text": "a", "top_logprobs_num": 1})
    late = GenerateRequest.model_validate(
        {"text": "a", "return_logprob": True, "logprob_start_len": 2}
    )
    asks = [Ask((1, 2), SamplingParams(), 0)]
    for name, refuse in {
        "prompt_logprobs": streamed.check,
        "top_logprobs": alone.check,
        "top_logprobs_num": bare.completions,
        "logprob_start_len": lambda: late.scored_from(asks),
    }.items():
        with pytest.raises(ApiError) as error:
            refuse()
        assert (error.value.status, error.value.param) == (400, name)
    both = ChatRequest.model_validate({**CHAT_BODY, "top_logprobs": 20, "logprobs": True})
    both.check()
    assert both.params(4).logprobs == 20


def test_sglangs_words_are_those_of_a_completion() -> None:
    said = {"text": "a", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    sampling = {"max_new_tokens": 0, "min_new_tokens": 0}
    (own,) = GenerateRequest.model_validate({**said, "sampling_params": sampling}).completions()
    assert (own.logprobs, own.prompt_logprobs, own.max_tokens) == (2, 2, 0)
    (own,) = GenerateRequest.model_validate(
        {"text": "a", "logprob_start_len": 0, "sampling_params": {"min_new_tokens": 3}}
    ).completions()
    assert (own.logprobs, own.prompt_logprobs, own.min_tokens) == (None, None, 3)
