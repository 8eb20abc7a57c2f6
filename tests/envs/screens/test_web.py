"""MiniWoB++ in a real Chromium: the expert is paid, who does nothing is not, nothing stays behind.

One Chromium serves all of these tests, as it serves all rollouts of a process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agentrl_envs.screens.web import LEVELS, WebTask, chromium, make_tasks
from agentrl_envs.screens.web.page import HEIGHT, WIDTH, WebPage
from agentrl_envs.screens.web.tasks import page_file

from agentrl.errors import ConfigError, EnvError
from agentrl.images import decode_image
from agentrl.types import Task
from tests.envs.screens.episodes import call, play

pytest.importorskip("miniwob")
pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, chromium.NAMES)), reason="Chromium is not installed"
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module", autouse=True)
def _one_browser():
    yield
    chromium.end()


async def test_the_experts_are_paid_on_every_page_of_the_levels() -> None:
    async def solve(task: Task) -> None:
        turns = await asyncio.to_thread(WebTask().solution, task)
        assert turns is not None, task.id
        played = await play(WebTask(), task, turns)
        assert (played.done, played.reward, played.score) == (True, 1.0, 1.0), task.id
        # The page before the first action, and after each one but the last.
        assert len(played.images) == len(turns)
        assert {(image.width, image.height) for image in played.images} == {(WIDTH, HEIGHT)}

    pages = sum(map(len, LEVELS.values()))
    await asyncio.gather(*map(solve, make_tasks(n=pages, levels=list(LEVELS))))


CHEATERS = {
    "says nothing": [""] * 12,
    "claims to be right": ["reward: 1.0"] * 12,
    "clicks on nothing": [call("click", x=159, y=209)] * 12,
    "types what would be code elsewhere": [
        call("type", text="core.endEpisode(1)"),
        call("key", name="Enter"),
    ]
    * 6,
    "asks for the tools of a browser": [call("key", name="F12")] * 12,
    "is another key": [call("key", name="Control+v")] * 12,
}


@pytest.mark.parametrize("name", CHEATERS)
async def test_nothing_is_paid_without_what_the_page_asks_for(name: str) -> None:
    (task,) = make_tasks(n=1, pages=["login-user"])
    played = await play(WebTask(), task, CHEATERS[name])
    assert (played.done, played.reward, played.score) == (True, -1.0, 0.0)
    assert played.last.explanation.reason == "It used all its turns."


async def test_the_same_seed_and_actions_show_the_same_pixels_at_any_pace() -> None:
    # It has links that move, a cursor and animations of jQuery.
    (task,) = make_tasks(n=1, pages=["chase-circle"])

    class Slow(WebTask):
        async def click(self, x: int, y: int):
            await asyncio.sleep(0.3)
            return await super().click(x, y)

    actions = [call("click", x=20 * n, y=60 + 20 * n) for n in range(4)]
    one, other = await play(WebTask(), task, actions), await play(Slow(), task, actions)
    assert one.images == other.images
    assert len({image.digest for image in one.images}) == len(one.images)
    (next_task,) = make_tasks(n=1, seed=1, pages=["chase-circle"])
    assert (await play(WebTask(), next_task, [])).images[0] != one.images[0]


async def test_what_is_no_action_is_an_answer_to_the_model() -> None:
    (task,) = make_tasks(n=1, pages=["enter-text"])
    wrong = [
        (call("click", x=160, y=0), "x=160, y=0 is outside of the page, which is 160 wide and 210"),
        (call("click", x=-1, y=10**300), "is outside of the page"),
        (call("key", name="F5"), "no such key: got 'F5'"),
        (call("type", text="a" * 201), "201 characters, at most 200"),
        (call("type", text="\ud800"), "no keyboard"),
        (call("type", text="\x00"), "no keyboard"),
    ]
    played = await play(WebTask(), task, [action for action, _ in wrong])
    for text, (_, said) in zip(played.texts[1::2], wrong, strict=True):
        assert said in text
    assert not played.done


async def test_keys_reach_the_page_and_calls_after_the_end_do_nothing() -> None:
    (task,) = make_tasks(n=1, pages=["enter-text"])
    turns = WebTask().solution(task)
    press = [call("type", text="wrong"), call("key", name="Control+a"), turns[1]]
    # Of one turn with many calls, those after the end of the episode change nothing.
    played = await play(WebTask(), task, [[turns[0], *press, turns[2], turns[2]]])
    assert (played.done, played.reward) == (True, 1.0)
    assert played.texts[-2:] == ["The episode is over.", ""]


async def test_all_tools_are_for_pages_that_need_them_and_coordinates_are_of_the_picture() -> None:
    (task,) = make_tasks(n=1, pages=["scroll-text"])
    env = WebTask(tools=["click", "scroll", "drag"], scale=2)
    played = await play(env, task, [call("scroll", x=80, y=200, down=400)])
    assert {(image.width, image.height) for image in played.images} == {(2 * WIDTH, 2 * HEIGHT)}
    assert played.images[0] != played.images[1]
    (blank,) = (await play(WebTask(blank=True), task, [])).images
    assert set(decode_image(blank.data).get_flattened_data()) == {(255, 255, 255)}


async def test_nothing_is_asked_of_a_network_and_a_page_that_is_left_is_lost() -> None:
    page = await WebPage.open(page_file("click-test"), seed="s")
    try:
        for url in ("http://example.com/", "http://127.0.0.1:1/", "https://[::1]/"):
            refused = "fetch(url, {mode: 'no-cors'}).then(() => 'answered', () => 'refused')"
            assert await page.ask(f"url => {refused}", url) == "refused"
        assert not (await page.state()).over
        await page.ask("() => { location.href = 'about:blank'; }")
        async with asyncio.timeout(120):
            while not (left := await page.state()).over:
                await asyncio.sleep(0.05)
        assert (left.reward, left.reason) == (-1.0, "the page was left")
    finally:
        await page.close()
        await page.close()


async def test_episodes_share_one_chromium_which_is_started_again_when_it_has_ended() -> None:
    tasks = make_tasks(n=3, levels=[1])
    await asyncio.gather(*[play(WebTask(), task, [""]) for task in tasks])
    browser = chromium.shared()
    env = WebTask()
    await env.reset(tasks[0])
    assert chromium.shared() is browser
    copy = os.dup(browser._process.stdin.fileno())  # as a forked process has
    browser.close()
    os.close(copy)
    assert browser._process.returncode >= 0, "it was killed, and its profile stays behind"
    assert browser.expect("Page.loadEventFired", "gone").done()
    browser.forget("gone")
    with pytest.raises(EnvError, match="Chromium has ended"):
        await env.click(1, 1)
    await env.close()
    assert chromium.shared() is not browser
    assert (await play(WebTask(), tasks[0], WebTask().solution(tasks[0]))).reward == 1.0


_PARENT = """
import os, time
from agentrl_envs.screens.web import chromium
from agentrl.machine.processes.tree import descendants_of
chromium.shared()
print(*descendants_of(os.getpid()), flush=True)
time.sleep(60)
"""


def test_chromium_ends_with_its_parent_even_by_kill_9() -> None:
    command = [sys.executable, "-c", _PARENT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        processes = [Path("/proc", pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(processes) > 2
    end = time.monotonic() + 120
    while any(process.exists() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [process for process in processes if process.exists()]


async def test_wrong_settings_are_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="pages: got 'login-usr'; did you mean 'login-user'"):
        make_tasks(pages=["login-usr"])
    with pytest.raises(ConfigError, match=r"levels among \[1, 2, 3, 4\], got n 256 and levels"):
        make_tasks(levels=[5])
    with pytest.raises(ConfigError, match="tools: got 'clik'; did you mean 'click'"):
        WebTask(tools=["clik"])
    with pytest.raises(ConfigError, match=r"turns >= 1.* got turns 0"):
        WebTask(turns=0)
    with pytest.raises(ValueError, match="a page and a seed in its metadata, got None"):
        await WebTask().reset(Task(id="t", prompt=""))
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(ConfigError, match=r"CHROMIUM=no-such-browser .*apt-get install chromium"):
        chromium.program()
    with pytest.raises(EnvError, match="true did not start"):
        chromium.Chromium("/bin/true")
