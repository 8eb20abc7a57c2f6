"""Bodies of turns and pages of metrics, without a server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentrl.errors import EngineError
from agentrl.serving.vllm.metrics import keeps_prefixes, read_metrics
from agentrl.serving.vllm.wire import generate_body, read_generation
from agentrl.types import FinishReason, SamplingParams

SAMPLING = SamplingParams(max_tokens=9, temperature=0.7, stop_token_ids=(3,), seed=4)


def answer(**changes: Any) -> bytes:
    ids = changes.pop("ids", [5, 6, 3])
    content = [{"token_id": token, "logprob": -0.5 * n} for n, token in enumerate(ids)]
    choice = {
        "token_ids": ids,
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
        **changes,
    }
    return orjson.dumps({"choices": [choice], "usage": {"prompt_tokens_details": None}})


def test_a_turn_says_all_that_a_models_defaults_could_change() -> None:
    body = orjson.loads(generate_body([1, 2], SAMPLING, model="policy", max_tokens=7))
    assert body["token_ids"] == [1, 2]
    parameters = body["sampling_params"]
    assert parameters["max_tokens"] == 7
    assert parameters["ignore_eos"] is True
    assert (parameters["top_k"], parameters["min_p"], parameters["min_tokens"]) == (0, 0.0, 0)
    assert parameters["repetition_penalty"] == 1.0


def test_spans_become_a_version_for_each_token() -> None:
    spans = [
        {"version": "default", "start": 0, "end": 1},
        {"version": "12", "start": 1, "end": 3},
    ]
    made = read_generation(answer(weight_versions=spans), SAMPLING, start_version=4)
    assert made.policy_versions == (4, 12, 12)
    assert made.finish_reason is FinishReason.STOP
    assert made.log_probs == (0.0, -0.5, -1.0)


def test_an_abort_before_the_first_token_is_empty() -> None:
    body = answer(ids=[], logprobs=None, weight_versions=None, finish_reason="abort")
    made = read_generation(body, SAMPLING, start_version=0)
    assert (made.ids, made.finish_reason) == ((), FinishReason.ABORT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": {"content": [{"token_id": 5, "logprob": -1.0}]}}, "3 token ids .* of 1 tok"),
        (
            {"logprobs": {"content": [{"token_id": n, "logprob": -1.0} for n in (5, 9, 3)]}},
            "of other tokens",
        ),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 2}]}, "for 3 tokens"),
        ({"weight_versions": [{"version": "1", "start": 1, "end": 3}]}, "for 3 tokens"),
        ({"weight_versions": None}, "for 3 tokens"),
        ({"ids": [5, 6]}, r"ended a turn with 'stop' .* after token \[6\]"),
        ({"finish_reason": "repetition"}, "ended a turn with 'repetition'"),
        (
            {"ids": [3], "logprobs": {"content": [{"token_id": 3, "logprob": -9999.0}]}},
            "not finite",
        ),
    ],
)
def test_parts_that_do_not_fit_are_an_error(changes: dict[str, Any], said: str) -> None:
    """Fails if a trajectory could hold tokens without their log-probs or versions."""
    with pytest.raises(EngineError, match=said):
        read_generation(answer(**changes), SAMPLING, start_version=0)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"choices": []}', b"<html>"])
def test_something_else_is_an_error(body: bytes) -> None:
    with pytest.raises(EngineError, match="no generation"):
        read_generation(body, SAMPLING, start_version=0)


def test_metrics_are_summed_over_labels_and_strangers_left_out() -> None:
    page = """# HELP vllm:num_requests_running Number
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="policy"} 2.0
vllm:num_requests_running_created{engine="1"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_hits_total{engine="0"} 1.2e+06 1700000000
vllm:generation_tokens_total 7
process_open_fds 35.0

"""
    assert read_metrics(page) == {
        "running": 5.0,
        "kv_cache_usage": 0.75,
        "prefix_hits": 1.2e6,
        "generated_tokens": 7.0,
    }


@pytest.mark.parametrize("kept", [True, False])
def test_a_page_says_whether_prefixes_are_kept(kept: bool) -> None:
    page = f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{kept}"}} 1.0'
    assert keeps_prefixes(page) is kept
    assert not keeps_prefixes("vllm:num_requests_running 3.0")
