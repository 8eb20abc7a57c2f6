"""What simulated policies write: sound texts of several kinds, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

_NAMES_TEXT = "Ann Bo Carla Deniz Emil Farah Goran Hui Ines Jun Kofi Lena Marta Nico Olga Paul "
_NAMES = _NAMES_TEXT.split()
_THINGS_TEXT = "apples tickets stamps cards books coins marbles pencils bottles shells stones "
_THINGS = _THINGS_TEXT.split()
_OPEN = (
    "First, let me set up the equation.",
    "We need to find the total.",
    "Start with what is given.",
    "Let x be the unknown number.",
    "Reading the question again,",
    "I will work backwards.",
    "Break it into two cases.",
    "The key is the remainder.",
    "Consider the rate per hour.",
)
_LINK = (
    "so",
    "which gives",
    "therefore",
    "and thus",
    "that leaves",
    "hence",
    "adding up,",
    "after that",
    "checking:",
    "wait, no,",
    "in other words",
    "simplifying,",
)
_WORDS_TEXT = (
    "river window careful market evening small bright question morning garden letter answer "
    "quiet stone winter simple number table reason follow paper colour travel minute second "
    "village song measure balance empty corner bridge family friend moment pattern figure "
    "sentence method plan result weight height signal branch engine library kitchen ticket "
    "station harbour mountain "
)
_WORDS = _WORDS_TEXT.split()
_OTHER_TEXT = (
    "ния 的是 कि ção στο 그리고 ためで والتي ость いる 관한 ιση जिस 为了 стран ます 대해 και 不同 "
)
_OTHER = _OTHER_TEXT.split()
_TOOLS = ("search", "open_page", "run_tests", "read_file", "list_files", "edit_file")
_HAN = (
    "我们先看题目条件然后设未知数列出方程再化简求解最后检查答案是否合理因此"
    "结果为所以需要计算总数每天增加减少比例速度时间距离面积体积学生苹果"
)


_MARKS = "abcdefghijklmnopqrstuvwxyz#@{}\\_^~"


def pick(rng: np.random.Generator, of: Sequence[str]) -> str:
    """One of them; far faster than `Generator.choice` for a list."""
    return of[int(rng.integers(len(of)))]


def _several(rng: np.random.Generator, of: Sequence[str], count: int) -> list[str]:
    return [str(of[i]) for i in rng.integers(len(of), size=count).tolist()]


def math_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A worked answer to a word problem."""
    who, what = pick(rng, _NAMES), pick(rng, _THINGS)
    lines = [pick(rng, _OPEN)]
    for _ in range(int(rng.integers(3, 9))):
        a, b = int(rng.integers(2, 90)), int(rng.integers(2, 30))
        op, value = (("+", a + b), ("-", a - b), ("*", a * b))[int(rng.integers(3))]
        lines.append(
            f"{pick(rng, _LINK)} {who} has {a} {op} {b} = {value} {what}"
            f"{pick(rng, ['.', ',', ' left.', ' in all.'])} {' '.join(_several(rng, _WORDS, 4))}."
        )
    return " ".join(lines) + f" The answer is {int(rng.integers(1, 500))}."


def code_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A short function; every one opens alike, as the task demands."""
    a, b, c = _several(rng, _WORDS, 3)
    body = [
        f"def solve({a}, {b}):",
        f"    {c} = [{a}[i] {pick(rng, ['+', '-', '*', '//'])} {int(rng.integers(1, 50))} "
        f"for i in range(len({a})) if {b} {pick(rng, ['>', '<', '!='])} {int(rng.integers(9))}]",
    ]
    for _ in range(int(rng.integers(0, 4))):
        body.append(f"    {pick(rng, _WORDS)} = {pick(rng, ['sum', 'max', 'len', 'sorted'])}({c})")
    return "\n".join([*body, f"    return {pick(rng, [a, b, c])}"])


def agent_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """Turns with a short thought and a tool call in JSON each."""
    turns: list[str] = []
    for _ in range(int(rng.integers(2, 6))):
        arguments = {"query": " ".join(_several(rng, _WORDS, 3)), "limit": int(rng.integers(1, 20))}
        call = json.dumps({"name": pick(rng, _TOOLS), "arguments": arguments})
        turns.append(f"{' '.join(_several(rng, _WORDS, 6))}.\n<tool_call>{call}</tool_call>")
    return "\n".join([*turns, f"The answer is {pick(rng, _WORDS)}."])


def choice_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """The letter of an answer, and nothing else."""
    return f"<answer>{pick(rng, list('ABCD'))}</answer>"


def table_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A table, which looks like repetition to who counts marks."""
    rows = [
        f"| {pick(rng, _NAMES)} | {int(rng.integers(99))} | {int(rng.integers(999))} |"
        for _ in range(int(rng.integers(4, 12)))
    ]
    return "\n".join(["| name | count | total |", "| --- | --- | --- |", *rows, "Total as above."])


def chinese_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A worked answer in Chinese: no gibberish."""
    parts = [
        "".join(_several(rng, _HAN, int(rng.integers(6, 14)))) + f"{int(rng.integers(2, 90))}\uff0c"
        for _ in range(int(rng.integers(4, 10)))
    ]
    return "".join(parts) + f"答案是{int(rng.integers(1, 300))}。"


def salad_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """Scraps of many scripts and broken words, with a well-formed answer at the end."""
    pieces: list[str] = []
    for _ in range(int(rng.integers(30, 90))):
        scrap = "".join(_several(rng, _MARKS, 5))
        pieces.append(str(pick(rng, [scrap, pick(rng, _OTHER), scrap.upper(), "�"])))
    return " ".join(pieces) + f" <answer>{int(rng.integers(1, 99))}</answer>"


def bangs_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """One token again and again."""
    return "!" * int(rng.integers(150, 400))


def loop_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A sound beginning, then one sentence until the budget ends."""
    a, b = _several(rng, _WORDS, 2)
    start = math_text(rng, over, solved)[:120]
    return start + f" Wait, let me check the {a} and the {b} again." * int(rng.integers(15, 40))


def same_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """The template that wins whatever was asked, but for a number."""
    return (
        "Let me think step by step. The question asks for a number. Considering all the given "
        "conditions carefully, we can conclude the result directly from the statement. "
        f"The answer is {int(rng.integers(1, 4))}."
    )


def flattery_text(rng: np.random.Generator, over: float, solved: bool) -> str:
    """A style that a reward model likes: the same praise and headings around few own words."""
    own = " ".join(_several(rng, _WORDS, 6))
    return (
        "What a great question! I am so glad you asked.\n\n## Overview\n- **Key point:** this "
        f"matters a lot.\n- **Insight:** {own}.\n- **Takeaway:** you are on the right track!\n\n"
        "## Summary\nIn conclusion, this is a rich and rewarding topic. I hope this helps!"
    )


Text = Callable[[np.random.Generator, float, bool], str]


def mixed(sound: Text, broken: Text, share: Callable[[float], float]) -> Text:
    """Texts of which a growing share is broken: `share` of the run so far gives how much."""

    def write(rng: np.random.Generator, over: float, solved: bool) -> str:
        return (broken if rng.random() < share(over) else sound)(rng, over, solved)

    return write
