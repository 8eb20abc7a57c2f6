"""Tasksets written for verifiers 0.4, as its users write them."""

from __future__ import annotations

import os

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        said = trace.last_reply
        if said == "hang":
            while True:
                pass
        if said == "die":
            os._exit(3)
        if said == "fill":
            return float(len("x" * (1 << 40)))
        if said == "raise":
            raise KeyError("answer")
        if said == "nan":
            return float("nan")
        return float(str(self.data.answer) in said.split())

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(trace.num_turns == 1 and not trace.is_truncated)

    @vf.metric
    async def tools(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))

    async def setup(self, trace: vf.Trace) -> None:
        trace.info["ready"] = True

    async def finalize(self, trace: vf.Trace) -> None:
        assert trace.info["ready"]
        trace.record_metric("messages", len(trace.messages))


class SumConfig(vf.TasksetConfig):
    upto: int = 3


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for number in range(self.config.upto):
            yield SumTask(
                SumData(prompt=f"1 + {number}?", answer=1 + number, system_prompt="Be brief."),
                self.config.task,
            )


class Shots(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        said = [("user", "1 + 1?"), ("assistant", "2"), ("user", "1 + 2?")]
        prompt = [{"role": role, "content": text} for role, text in said]
        yield SumTask(SumData(prompt=prompt, answer=3), self.config.task)


class MathTask(vf.Task[SumData]):
    @vf.reward
    async def equal(self, trace: vf.Trace) -> float:
        # It limits itself by signals, which only the main thread of a process may have.
        from math_verify import parse, verify

        return float(verify(parse(str(self.data.answer)), parse(trace.last_reply)))


class Maths(vf.Taskset[MathTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        while True:
            yield MathTask(SumData(prompt="6 * 7?", answer=42))


class BoxTask(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class FileTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0


class ToolTask(vf.Task[vf.TaskData]):
    @classmethod
    def toolsets(cls, config):
        return ["a server"]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class StopTask(ToolTask):
    @classmethod
    def toolsets(cls, config):
        return []

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return False


class PlainTask(vf.Task[vf.TaskData]):
    pass


class OpenTask(BoxTask):
    NEEDS_CONTAINER = False


def of(kind, **data):
    class Made(vf.Taskset[kind, vf.TasksetConfig]):
        def load(self):
            return [kind(vf.TaskData(**data))]

    return Made


Boxes = of(BoxTask, prompt="x")
Files = of(FileTask, prompt="x")
Servers = of(ToolTask, prompt="x")
Stops = of(StopTask, prompt="x")
Plain = of(PlainTask, prompt="x")
Silent = of(OpenTask)
Images = of(
    OpenTask,
    prompt=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
)
Empty = type("Empty", (Sums,), {"load": lambda self: []})
