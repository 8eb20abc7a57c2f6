"""What of a vLLM server is asked before a run and until its first sync is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class FakeVllm:
    """A server that holds weights of some version, and nothing else."""

    def __init__(self, version: str, model: Path | None = None) -> None:
        self.model = model
        """Folder of a checkpoint that gives log-probabilities."""
        self.version = version
        """Name of its weights."""
        self.url = ""
        """Where it is, once it runs."""
        self.asked: list[str] = []
        """Paths, in order."""
        self._paused = False

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        answer: dict[str, Any] = {}
        match request.path:
            case "/v1/models":
                answer = {"data": [{"id": "policy", "max_model_len": 4096}]}
            case "/weight_info":
                answer = {"weight_version": self.version}
            case "/update_weight_version":
                self.version = (await request.json())["new_version"]
            case "/finish_weight_update" if request.can_read_body:
                self.version = (await request.json()).get("weight_version", self.version)
            case "/pause" | "/resume":
                self._paused = request.path == "/pause"
            case "/is_paused":
                answer = {"is_paused": self._paused}
            case "/reset_prefix_cache":
                answer = {"success": True}
            case "/tokenize":
                return web.Response(status=404)
            case "/inference/v1/generate" if request.method == "POST":
                return self._generate(await request.json())
            case "/metrics":
                return web.Response(text="")
            case _:
                pass
        return web.json_response(answer)

    def _generate(self, asked: dict[str, Any]) -> web.Response:
        import torch
        from transformers import AutoModelForCausalLM

        assert self.model is not None
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        prompt, sampling = asked["token_ids"], asked["sampling_params"]
        if max(prompt) >= model.config.vocab_size:
            return web.json_response({"error": {"message": "out of vocabulary"}}, status=400)
        ids = [(3 * i) % 50 for i in range(sampling["max_tokens"])]
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        table_TV = torch.log_softmax(logits_TV / sampling["temperature"], dim=-1).tolist()
        content = [
            {
                "token_id": token,
                "logprob": row[token],
                "top_logprobs": [{"token_id": t, "logprob": row[t]} for t in range(50)],
            }
            for token, row in zip(ids, table_TV, strict=True)
        ]
        spans = [{"version": self.version, "start": 0, "end": len(ids)}]
        choice = {
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": "length",
            "weight_versions": spans,
        }
        return web.json_response({"choices": [choice], "usage": {}})


@asynccontextmanager
async def fake_vllm(version: str, model: Path | None = None) -> AsyncIterator[FakeVllm]:
    """A server on a free port."""
    server = FakeVllm(version, model)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server._answer)
    async with TestServer(app) as served:
        server.url = f"http://127.0.0.1:{served.port}"
        yield server
