"""More turns than file descriptors: they wait, and no server is taken for sick."""

from __future__ import annotations

import json
import subprocess
import sys

from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn

CHILD = """
import asyncio, json, resource, sys

DESCRIPTORS, TURNS, HELD = map(int, sys.argv[1:4])
soft = DESCRIPTORS if HELD else DESCRIPTORS // 2
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, DESCRIPTORS))

from agentrl.serving import TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.types import SamplingParams


async def main():
    engines = [VllmEngine(url, name=url) for url in sys.argv[4:]]
    for engine in engines:
        await engine.connect()
    client = TokenClient(engines)
    held = [open("/dev/null") for _ in range(HELD)]
    sampling = SamplingParams(max_tokens=4, stop_token_ids=(9,))
    turns = [client.generate([1], sampling, f"s{i}") for i in range(TURNS)]
    running = [asyncio.ensure_future(turn) for turn in turns]
    await asyncio.sleep(1.0)
    for file in held:
        file.close()
    answers = await asyncio.gather(*running, return_exceptions=True)
    health = await client.health()
    print(json.dumps({
        "failed": [repr(a) for a in answers if isinstance(a, BaseException)][:3],
        "active": len(client.active()),
        "well": all(state.ready for state in health.values()),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        **client.counters(),
    }))
    await client.close()


asyncio.run(main())
"""


def run(descriptors: int, turns: int, held: int) -> dict[str, object]:
    turn = FakeTurn(seconds=0.3, ids=[1, 9], max_context_tokens=64)
    with fake_fleet(2, turn, conversations=turns) as fleet:
        words = [str(number) for number in (descriptors, turns, held)]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *words, *fleet.urls],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(said: dict[str, object], turns: int) -> None:
    assert said["failed"] == []
    assert (said["active"], said["well"]) == (2, True)
    assert said["serving/turns"] == turns
    assert said["serving/quarantines"] == said["serving/failures"] == said["serving/refusals"] == 0


def test_more_turns_than_descriptors_wait_for_a_connection() -> None:
    """Fails with a connection a turn: most turns are refused, and healthy servers quarantined."""
    said = run(descriptors=512, turns=1500, held=0)
    check(said, 1500)
    assert said["limit"] == 512, "the soft limit is raised to the hard one"


def test_descriptors_that_others_hold_are_waited_for() -> None:
    """Fails if a process without a free descriptor takes its servers for gone."""
    check(run(descriptors=256, turns=200, held=225), 200)
