"""Fields of other servers that ask for nothing: which values of them are taken and passed over.

Clients write every field they know, most of them null or at its default. Such a value changes
nothing, so refusing it would only lock the client out; any other value of these fields would have
to be honoured, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# What a field may be beside null. A type stands for each of its values: names and labels that
# nothing is computed from.
Values = tuple[Any, ...]

OPENAI: dict[str, Values] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": (dict,),
    "modalities": ([], ["text"]),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (str,),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (str,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "user": (str,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

VLLM: dict[str, Values] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "ec_transfer_params": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "request_id": (str,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "session_id": (str,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left", "right"),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}

SGLANG: dict[str, Values] = {
    "audio_data": ([],),
    "background": (False,),
    "beam_width": (1,),
    "bootstrap_host": (),
    "bootstrap_pair_key": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "conversation_id": (str,),
    "custom_labels": ({},),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "data_parallel_rank": (),
    "decode_tp_size": (),
    "disagg_prefill_dp_rank": (),
    "ebnf": (),
    "external_trace_header": ({},),
    "extra_key": (),
    "image_data": ([],),
    "images_config": ({},),
    "input_embeds": (),
    "json_schema": (),
    "log_metrics": (True,),
    "logprob_start_len": (-1,),
    "lora_id": (),
    "lora_path": (),
    "max_dynamic_patch": (),
    "max_thinking_tokens": (),
    "min_dynamic_patch": (),
    "min_new_tokens": (0,),
    "mm_content_hashes": (),
    "mm_hashes": (),
    "need_wait_for_mm_inputs": (False,),
    "no_logs": (False,),
    "no_stop_trim": (False,),
    "positional_embed_overrides": (),
    "regex": (),
    "require_reasoning": (False,),
    "return_bytes": (False,),
    "return_cached_tokens_details": (False,),
    "return_entropy": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "return_flat_raw_top_logprobs": (False,),
    "return_flat_raw_top_logprobs_b64": (False, True),
    "return_hidden_states": (False,),
    "return_indexer_topk": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_meta_info": (False,),
    "return_output_ids_in_sglext": (False,),
    "return_prompt_token_ids": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "return_spec_tokens_details": (False,),
    "return_text_in_logprobs": (False,),
    "rid": (str,),
    "routed_dp_rank": (),
    "routed_experts_start_len": (0,),
    "routing_key": (str,),
    "sampling_logprobs_mode": (),
    "separate_reasoning": (True,),
    "session_params": ({},),
    "stop_regex": ("", []),
    "stream_reasoning": (True,),
    "structural_tag": (),
    "task": (),
    "thinking": (),
    "token_ids_logprob": ([],),
    "top_logprobs_num": (0,),
    "use_audio_in_video": (False,),
    "video_config": ({},),
    "video_data": ([],),
    "watermark": (),
}

LLAMA_CPP: dict[str, Values] = {
    "cache_prompt": (True,),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1,),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "id_slot": (-1,),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "repeat_last_n": (64,),
    "repeat_penalty": (1,),
    "response_fields": ([],),
    "return_progress": (False,),
    "return_tokens": (False,),
    "t_max_predict_ms": (0,),
    "timings_per_token": (False,),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
}

NEUTRAL: Mapping[str, Values] = MappingProxyType({**OPENAI, **VLLM, **SGLANG, **LLAMA_CPP})


def is_neutral(value: object, values: Values) -> bool:
    """Whether a field of these neutral values asks for nothing when it is set to this one."""
    return value is None or any(_matches(value, entry) for entry in values)


def _matches(value: object, entry: object) -> bool:
    if isinstance(entry, type):
        return isinstance(value, entry)
    # True equals 1 in Python and not in JSON; 1 equals 1.0 in both.
    return value == entry and isinstance(value, bool) == isinstance(entry, bool)
