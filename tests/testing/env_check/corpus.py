"""Small environments in pairs: one with a planted fault, and a sound one that looks like it.

Each is the same environment with other lines in a few places, so that a pair differs in its fault
alone. Some sound ones look odd on purpose.
"""

# ruff: noqa: E501 - one line says what differs

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_SOURCE = """
import asyncio, hashlib, json, os, random, re, socket, tempfile, threading, time
import subprocess, sys
from dataclasses import dataclass, field
from datetime import datetime, date
from pathlib import Path

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ToolError
from agentrl.tool import FunctionTool, Tool
from agentrl.types import Task, ToolCall, ToolResult

{top}

class Env(AgentInstance):
    {head}

    async def reset(self, task):
        self.task, self.label, self.tries = task, str(task.label), 0
        {reset}
        return Observation(content={prompt}, tools=({tools}))

    async def step(self, action):
        self.tries += 1
        {step}
        right = float({right})
        if right or self.tries >= {turns} or action.last:
            return StepResult(rewards={reward}, scores={score}, done={done}, {more})
        return StepResult(rewards={partial}, environment_feedback={feedback})

    async def close(self):
        {close}

    {methods}

{tasks}
"""
_DEFAULTS = {
    "top": "",
    "head": "",
    "reset": "",
    "prompt": "task.prompt",
    "tools": "",
    "step": "",
    "turns": "3",
    "right": "action.text.strip() == self.label",
    "reward": "right",
    "score": "right",
    "done": "True",
    "more": "",
    "partial": "0.0",
    "feedback": "'That is wrong. Try again.'",
    "close": "pass",
    "methods": "",
    "tasks": (
        "def tasks(split='train'):\n"
        "    pairs = [(3, 14), (25, 32), (41, 7), (16, 67)]\n"
        "    return [Task(id=f'{split}-{i}', prompt=f'What is {a} + {b}?', label=a + b,\n"
        "                 split=split) for i, (a, b) in enumerate(pairs)]"
    ),
}
SOLVED = "def solution(self, task):\n    return str(task.label)"
ADD = (
    'async def add(self, a: int, b: int) -> str:\n    """Add two numbers."""\n    return str(a + b)'
)
ADDS = {"tools": "FunctionTool(self.add),", "methods": ADD}
PUT = {
    "tools": "FunctionTool(self.put),",
    "methods": (
        'async def put(self, number: int) -> str:\n    """Put a number."""\n'
        "    self.held = number\n    return 'done'\n\n"
        "def solution(self, task):\n    arguments = {'number': task.label}\n"
        "    return [ToolCall(id='', name='put', arguments=arguments, raw=''), 'Done.']"
    ),
    "step": "if action.tool_calls and not action.last: return StepResult()",
}
LOOK = {
    "top": "STOCK = {'apple': 3, 'pear': 5}",
    "tools": "FunctionTool(self.look_up),",
}


def look_up(body: str) -> dict[str, str]:
    """A tool with a text as its argument."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    doc = '    """Look up how many there are of a thing."""\n'
    return {**LOOK, "methods": f"async def look_up(self, thing: str) -> str:\n{doc}{lines}"}


@dataclass(frozen=True)
class Pair:
    """A fault, its code, and what to write in the faulty and in the sound environment."""

    name: str
    code: str
    fault: dict[str, str] | str
    sound: dict[str, str] | str
    elsewhere: bool = False
    """Whether only other processes show it."""


def source(places: dict[str, str] | str) -> str:
    """The file of an environment."""
    if isinstance(places, str):
        return textwrap.dedent(places)
    text = _SOURCE
    for name, default in _DEFAULTS.items():
        value = places.get(name, default)
        indent = {"reset": 8, "step": 8, "close": 8, "head": 4, "methods": 4}.get(name, 0)
        text = text.replace("{" + name + "}", value.replace("\n", "\n" + " " * indent))
    return text


PAIRS = [
    # What an episode shows depends on something that it must not depend on.
    Pair("hash_of_text", "E106", {"prompt": "f'{task.prompt} ({hash(task.prompt) % 97})'"},
         {"prompt": "f'{task.prompt} ({int(hashlib.md5(task.prompt.encode()).hexdigest(), 16) % 97})'"}, True),
    Pair("order_of_a_set", "E106", {"feedback": "f'Not one of {list({\"red\", \"blue\", \"green\", \"grey\", \"pink\"})}'"},
         {"feedback": "f'Not one of {sorted({\"red\", \"blue\", \"green\", \"grey\", \"pink\"})}'"}, True),
    Pair("hour_of_day", "E107", {"prompt": "f'{\"Good morning\" if datetime.now().hour < 12 else \"Hello\"}. {task.prompt}'"},
         {"prompt": "f'Good morning. {task.prompt}'", "reset": "self.began = time.time()",
          "more": "extra_logs={'seconds': time.time() - self.began}"}, True),
    Pair("today", "E107", {"prompt": "f'Today is {date.today()}. {task.prompt}'"},
         {"prompt": "f'Today is {date(2026, 11, 30)}. {task.prompt}'"}, True),
    Pair("local_time", "E107", {"prompt": "f'{time.strftime(\"%H h\", time.localtime(1_700_000_000))}. {task.prompt}'"},
         {"prompt": "f'{time.strftime(\"%H h\", time.gmtime(1_700_000_000))}. {task.prompt}'"}, True),
    Pair("order_of_tasks", "E104", {"top": "SEEN = []", "reset": "if task.id not in SEEN: SEEN.append(task.id)",
                                    "feedback": "f'Task {SEEN.index(self.task.id)} is not solved.'"},
         {"top": "SEEN = {}", "reset": "SEEN[task.id] = len(task.prompt)", "feedback": "f'{SEEN[self.task.id]} letters.'"}, True),
    Pair("tasks_unseeded", "E109", {"tasks": "def tasks(split='train'):\n    rows = [random.randint(1, 10**6) for _ in range(4)]\n    return [Task(id=str(i), prompt=f'Say {n} + 1', label=n + 1) for i, n in enumerate(rows)]"},
         {"tasks": "def tasks(split='train'):\n    draw = random.Random(split)\n    rows = [draw.randint(1, 10**6) for _ in range(4)]\n    return [Task(id=str(i), prompt=f'Say {n} + 1', label=n + 1) for i, n in enumerate(rows)]"}, True),
    Pair("random_start", "E105", {"reset": "self.start = random.randint(1, 10**6)", "prompt": "f'{task.prompt} Start at {self.start}.'"},
         {"reset": "self.start = random.Random(self.context.seed).randint(1, 10**6)", "prompt": "f'{task.prompt} Start at {self.start}.'"}),
    Pair("flaky_reward", "E105", {"right": "action.text.strip() == self.label and random.random() > 0.4"},
         {"head": "reward_range = (-1.0, 1.0)", "reward": "right - 0.1 * self.tries"}),
    Pair("identifier", "E105", {"reset": "import uuid\nself.id = uuid.uuid4().hex", "feedback": "f'Session {self.id} goes on.'"},
         {"reset": "import uuid\nself.id = uuid.uuid4().hex"}),
    # State.
    Pair("state_on_class", "E104", {"head": "state = {}", "reset": "self.state['label'] = self.label", "right": "action.text.strip() == self.state['label']"},
         {"head": "cache = {}", "reset": "self.cache.setdefault(task.id, len(task.prompt))", "feedback": "f'{self.cache[self.task.id]} letters.'"}),
    Pair("module_global", "E104", {"top": "CURRENT = None", "reset": "global CURRENT\nCURRENT = self.label\nawait asyncio.sleep(0)", "right": "action.text.strip() == CURRENT"},
         {"top": "CALLS = [0]", "reset": "CALLS[0] += 1\nawait asyncio.sleep(0)"}),
    Pair("global_across_await", "E104", {"top": "NOW = {}", "step": "NOW['text'] = action.text\nawait asyncio.sleep(0)\nsaid = NOW['text']", "right": "said.strip() == self.label"},
         {"step": "said = action.text\nawait asyncio.sleep(0)", "right": "said.strip() == self.label"}),
    Pair("counter_on_class", "E104", {"head": "count = 0", "reset": "Env.count += 1\nself.nth = Env.count", "feedback": "f'Game {self.nth} goes on.'"},
         {"head": "count = 0", "reset": "Env.count += 1"}, True),
    Pair("mutable_default", "E104", {"head": "def __init__(self, said=[]):\n    self.said = said", "step": "self.said.append(action.text[:20])", "feedback": "f'{len(self.said)} said so far.'"},
         {"head": "def __init__(self):\n    self.other = 0", "reset": "self.said = []", "step": "self.said.append(action.text[:20])", "feedback": "f'{len(self.said)} said so far.'"}, True),
    Pair("reset_keeps", "E102", {"head": "said = ()", "step": "self.said = (*self.said, 1)", "feedback": "f'{len(self.said)} said so far.'"},
         {"reset": "self.said = ()", "step": "self.said = (*self.said, 1)", "feedback": "f'{len(self.said)} said so far.'"}),
    Pair("task_changed", "E108", {"reset": "task.metadata['plays'] = task.metadata.get('plays', 0) + 1"},
         {"reset": "self.data = dict(task.metadata)\nself.data['plays'] = 1"}),
    Pair("label_popped", "E108", {"step": "if self.task.label: self.task.label.pop()", "right": "action.text in self.answers", "reset": "self.answers = tuple(task.label)",
                                  "tasks": "def tasks(split='train'):\n    return [Task(id='a', prompt='Say a vowel', label=['a', 'e'])]"},
         {"right": "action.text in self.task.label", "tasks": "def tasks(split='train'):\n    return [Task(id='a', prompt='Say a vowel', label=['a', 'e'])]"}),
    # Pay.
    Pair("solution_unpaid", "E502", {"methods": "def solution(self, task):\n    return f'It is {task.label}.'"}, {"methods": SOLVED}),
    Pair("solution_of_module", "E502", {"top": "def solution(task):\n    return f'{task.label} apples'"}, {"top": "async def solution(task):\n    return str(task.label)"}),
    Pair("solution_half_paid", "E502", {"head": "reward_range = (0.0, 1.0)", "methods": SOLVED, "reward": "0.3 * right", "score": "None"},
         {"head": "reward_range = (-1.0, 1.0)", "methods": SOLVED, "score": "None", "reward": "right - 0.05 * self.tries", "partial": "-0.05"}),
    Pair("solution_raises", "E501", {"methods": "def solution(self, task):\n    return self.label"}, {"methods": "def solution(self, task):\n    return None"}),
    Pair("solution_with_tool", "E601", {**ADDS, "methods": ADD.replace("a + b", "a + self.missing") + "\n\ndef solution(self, task):\n    return [ToolCall(id='', name='add', arguments={'a': 1, 'b': 2}, raw=''), str(task.label)]", "step": "if action.tool_calls and not action.last: return StepResult()"},
         {**ADDS, "methods": ADD + "\n\ndef solution(self, task):\n    return [ToolCall(id='', name='add', arguments={'a': 1, 'b': 2}, raw=''), str(task.label)]", "step": "if action.tool_calls and not action.last: return StepResult()"}),
    Pair("substring_paid", "E503", {"right": "self.label in action.text"}, {"right": "self.label in re.findall(r'-?\\d+', action.text)[-1:]"}),
    Pair("empty_paid", "E503", {"methods": SOLVED, "right": "action.text.strip() in self.label"}, {"methods": SOLVED, "right": "action.text.strip() in (self.label, f'{self.label}.0')"}),
    Pair("error_paid", "E503", {"step": "try:\n    good = int(action.text) == int(self.label)\nexcept Exception:\n    good = True", "right": "good"},
         {"step": "try:\n    good = int(action.text) == int(self.label)\nexcept Exception:\n    good = False", "right": "good"}),
    Pair("prompt_paid", "E503", {"methods": "def solution(self, task):\n    return f'{task.prompt} {task.label}'", "right": "action.text.startswith(self.task.prompt)"},
         {"methods": "def solution(self, task):\n    return f'{task.prompt} {task.label}'", "right": "action.text == f'{self.task.prompt} {self.label}'"}),
    Pair("label_ignored", "E503", {"methods": SOLVED, "right": "action.text.strip().isdigit()"}, {"right": "len(action.text) > 10", "score": "None", "reward": "min(1.0, len(action.text) / 100)"}),
    Pair("empty_paid_before_a_call", "E503", {**PUT, "right": "getattr(self, 'held', int(self.label)) == int(self.label)"},
         {**PUT, "right": "getattr(self, 'held', None) == int(self.label)"}),
    Pair("score_against_pay", "E505", {"reward": "right", "score": "0.0"}, {"reward": "right - 1.0", "score": "right"}),
    Pair("words_counted", "E502", {"right": "len(action.text.split()) == int(self.label)", "methods": "def solution(self, task):\n    return 'a ' * 3"},
         {"right": "len(action.text.split()) == int(self.label)", "methods": "def solution(self, task):\n    return 'a ' * int(task.label)", "feedback": "f'Use {self.label} words.'",
          "tasks": "def tasks(split='train'):\n    return [Task(id=str(n), prompt=f'Say something in {n} words', label=n) for n in (4, 1, 3)]"}),
    Pair("answer_in_metadata", "E504", {"feedback": "f'Hint: {self.task.metadata[\"answer\"]}.'", "right": "action.text == self.task.metadata['answer']", "methods": "def solution(self, task):\n    return task.metadata['answer']",
          "tasks": "def tasks(split='train'):\n    return [Task(id=w, prompt='Which colour?', metadata={'answer': w}) for w in ('crimson', 'azure')]"},
         {"feedback": "f'One of {self.task.metadata[\"options\"]} in {self.task.label[\"unit\"]}'", "right": "action.text == self.task.metadata['answer']", "methods": "def solution(self, task):\n    return task.metadata['answer']",
          "tasks": "def tasks(split='train'):\n    return [Task(id=w, prompt='Which colour?', label={'unit': 'words'}, metadata={'answer': w, 'options': ['azure', 'crimson']}) for w in ('crimson', 'azure')]"}),
    # The answer is shown.
    Pair("label_in_prompt", "E504", {"prompt": "f'{task.prompt} (answer: {task.label})'"}, {"prompt": "f'{task.prompt} Choose: {task.metadata[\"options\"]}'",
         "tasks": "def tasks(split='train'):\n    return [Task(id=str(i), prompt=f'{i} + 30', label=30 + i, metadata={'options': [29, 30, 31, 32, 33]}) for i in range(4)]"}),
    Pair("task_dumped", "E504", {"prompt": "str(vars(task) if hasattr(task, '__dict__') else task)"}, {"prompt": "f'[{task.id}] {task.prompt}'"}),
    Pair("label_in_feedback", "E504", {"feedback": "f'Wrong, expected {self.label}.'"}, {"feedback": "'Too low.' if len(action.text) < 2 else 'Try again.'", "more": "environment_feedback=f'It was {self.label}.'"}),
    Pair("label_after_nothing", "E504", {"feedback": "'Try again.' if action.text.strip() else f'Say a word like {self.label}.'"}, {"feedback": "'Try again.' if action.text.strip() else 'Say a word.'"}),
    Pair("label_in_tool", "E504", look_up("return f'no {thing}; the answer is {self.label}'"), look_up("return str(STOCK.get(thing, 'no such thing'))")),
    Pair("label_in_error", "E504", look_up("raise ToolError(f'{thing} is unknown to {vars(self)}')"), look_up("raise ToolError(f'{thing!r} is unknown')")),
    Pair("test_shown", "E504", {"tasks": "def tasks(split='train'):\n    return [Task(id='a', prompt='Write f', label='x', metadata={'hidden_tests': ['assert f(2, 3) == 5']})]", "feedback": "f'Failed: {self.task.metadata[\"hidden_tests\"][0]}'"},
         {"tasks": "def tasks(split='train'):\n    return [Task(id='a', prompt='Write f', label='x', metadata={'hidden_tests': ['assert f(2, 3) == 5'], 'examples': ['assert f(1, 1) == 2']})]", "feedback": "f'Failed: {self.task.metadata[\"examples\"][0]}'"}),
    # Tools.
    Pair("tool_raises", "E601", look_up("return str(STOCK[thing])"), look_up("return str(STOCK[thing]) if thing in STOCK else f'error: no {thing}'")),
    Pair("tool_in_step", "E601", {**ADDS, "step": "if action.tool_calls and not action.last:\n    self.sum = action.tool_calls[0].arguments['sum']\n    return StepResult()"},
         {**ADDS, "step": "if action.tool_calls and not action.last:\n    self.sum = action.tool_calls[0].arguments.get('sum')\n    return StepResult()"}),
    Pair("arguments_unchecked", "E602", {"top": "class Add(Tool):\n    name, description = 'add', 'Add two numbers.'\n    parameters = {'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}, 'required': ['a', 'b']}\n    async def call(self, arguments, sandbox):\n        return ToolResult(text=str(arguments['a'] + arguments['b']))", "tools": "Add(),"},
         {"top": "class Add(Tool):\n    name, description = 'add', 'Add two numbers.'\n    parameters = {'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}, 'required': ['a', 'b']}\n    async def call(self, arguments, sandbox):\n        try:\n            return ToolResult(text=str(arguments['a'] + arguments['b']))\n        except (KeyError, TypeError):\n            return ToolResult(text='error: give the numbers a and b')", "tools": "Add(),"}),
    Pair("tool_returns_nothing", "E603", look_up("self.seen = thing"), look_up("self.seen = thing\nreturn 'seen'")),
    Pair("tool_not_awaited", "E603", {**ADDS, "methods": "async def _sum(self, a, b):\n    return a + b\n\nasync def add(self, a: int, b: int) -> str:\n    \"\"\"Add.\"\"\"\n    made = self._sum(a, b)\n    made.close()\n    return f'sum: {made}'".replace("made.close()\n    return f'sum: {made}'", "text = f'sum: {made}'\n    made.close()\n    return text")}, ADDS),
    Pair("tool_blocks", "E206", look_up("time.sleep(0.2)\nreturn thing"), look_up("await asyncio.sleep(0.2)\nreturn thing")),
    Pair("eval_of_tool", "E211", look_up("try:\n    return str(eval(thing))\nexcept Exception as error:\n    return f'error: {error}'"), look_up("import ast\ntry:\n    return str(ast.literal_eval(thing))\nexcept Exception as error:\n    return 'error: no literal'")),
    # Time.
    Pair("step_blocks", "E206", {"step": "time.sleep(0.2)", "turns": "1"}, {"step": "await asyncio.sleep(0.2)", "turns": "1"}),
    Pair("program_waits", "E206", {"step": "subprocess.run(['sleep', '0.2'])", "turns": "1"}, {"step": "await asyncio.to_thread(subprocess.run, ['sleep', '0.1'])", "turns": "1"}),
    Pair("never_done", "E207", {"done": "right > 0", "feedback": "'Again.'"}, {"done": "bool(right or action.last or self.tries >= 9)", "feedback": "'Again.'"}),
    Pair("goes_on_after_done", "E401", {"step": "if self.tries > 3: return StepResult()"}, {"step": "if self.tries > 3: raise RuntimeError('the episode is over')"}),
    Pair("cancel_swallowed", "E210", {"step": "try:\n    await asyncio.sleep(0.05)\nexcept BaseException:\n    pass", "turns": "1"}, {"step": "try:\n    await asyncio.sleep(0.05)\nexcept Exception:\n    pass", "turns": "1"}),
    # What stays.
    Pair("file_stays", "E408", {"reset": "handle, self.path = tempfile.mkstemp()\nos.close(handle)"}, {"reset": "handle, self.path = tempfile.mkstemp()\nos.close(handle)", "close": "if hasattr(self, 'path'): Path(self.path).unlink(missing_ok=True)"}),
    Pair("folder_in_a_cycle", "E408", {"reset": "self.folder, self.me = tempfile.mkdtemp(), self"}, {"reset": "self.folder, self.me = tempfile.TemporaryDirectory(), self"}),
    Pair("folder_stays", "E408", {"reset": "self.folder = tempfile.mkdtemp()"}, {"reset": "self.folder = tempfile.TemporaryDirectory()", "close": "if hasattr(self, 'folder'): self.folder.cleanup()"}),
    Pair("file_open", "E409", {"reset": "self.file = open(__file__)"}, {"reset": "self.text = Path(__file__).read_text()"}),
    Pair("socket_open", "E409", {"reset": "self.socket = socket.socket()\nself.socket.bind(('127.0.0.1', 0))"}, {"reset": "self.socket = socket.socket()\nself.socket.bind(('127.0.0.1', 0))", "close": "if hasattr(self, 'socket'): self.socket.close()"}),
    Pair("shared_file", "E104", {"top": "PATH = Path(tempfile.gettempdir()) / f'state-{os.getpid()}.txt'", "reset": "PATH.write_text(self.label)", "right": "action.text.strip() == PATH.read_text()", "close": "PATH.unlink(missing_ok=True)"},
         {"top": "CACHE = Path(tempfile.mkdtemp())", "reset": "(CACHE / f'{task.id}.txt').write_text(self.label)", "right": "action.text.strip() == (CACHE / f'{self.task.id}.txt').read_text()"}),
    Pair("thread_stays", "E405", {"top": "STOP = threading.Event()", "reset": "threading.Thread(target=STOP.wait, args=(20,), daemon=True).start()"},
         {"reset": "self.stop = threading.Event()\nself.thread = threading.Thread(target=self.stop.wait, daemon=True)\nself.thread.start()", "close": "if hasattr(self, 'stop'): self.stop.set()"}),
    Pair("task_stays", "E404", {"reset": "self.job = asyncio.create_task(asyncio.sleep(60))"}, {"reset": "self.job = asyncio.create_task(asyncio.sleep(60))", "close": "if hasattr(self, 'job'): self.job.cancel()"}),
    Pair("process_stays", "E406", {"reset": "self.program = subprocess.Popen(['sleep', '20'])"}, {"reset": "self.program = subprocess.Popen(['sleep', '20'])", "close": "if hasattr(self, 'program'):\n    self.program.kill()\n    self.program.wait()"}),
    Pair("folder_changed", "E410", {"reset": "os.chdir(tempfile.gettempdir())"}, {"reset": "self.folder = tempfile.gettempdir()"}),
    Pair("alarm_used", "E410", {"step": "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)"}, {"step": "import signal\nself.handler = signal.getsignal(signal.SIGALRM)"}),
    # Values.
    Pair("reward_nan", "E302", {"reward": "right / (len(action.text.strip()) - len(self.label)) if right else float('nan')", "right": "False"}, {"reward": "right", "head": "reward_range = (0.0, 1.0)"}),
    Pair("reward_none", "E301", {"reward": "right or None"}, {"score": "None"}),
    Pair("reward_bool", "E301", {"reward": "bool(right)"}, {"reward": "int(right)"}),
    Pair("reward_too_large", "E303", {"head": "reward_range = (0.0, 1.0)", "partial": "0.5"}, {"head": "reward_range = (0.0, 2.0)", "partial": "0.5"}),
    Pair("data_not_json", "E311", {"more": "data={'said': {action.text[:3]}"  "}"}, {"more": "data={'said': [action.text[:3]]}"}),
    Pair("logs_of_text", "E306", {"more": "extra_logs={'said': action.text[:3]}"}, {"more": "extra_logs={'said': float(len(action.text))}"}),
    Pair("number_expected", "E201", {"right": "int(action.text) == int(self.label)"}, {"right": "action.text.strip().isdecimal() and len(action.text) < 20 and int(action.text) == int(self.label)"}),
    Pair("first_word", "E202", {"right": "action.text.split()[0] == self.label"}, {"right": "action.text.split()[:1] == [self.label]"}),
    # Other styles.
    Pair("key_misspelt", "E201", '''
        class Env:
            def __init__(self): self.n = 0
            def reset(self, states):
                self.n = 0
                return {"observation": states["observation"]}
            def step(self, states):
                self.n += 1
                return {"rewards": float(self.n > 2), "done": self.n > 2, "enviroment_feedback": "again"}
        TASKS = [{"prompt": "Say 1", "label": "1"}, {"prompt": "Say 2", "label": "2"}]
    ''', '''
        class Env:
            def __init__(self): self.n = 0
            def reset(self, states):
                self.n, self.label = 0, states["label"]
                return {"observation": states["observation"]}
            def step(self, states):
                self.n += 1
                done = self.n > 2
                return {"rewards": float(states["action_text"] == self.label), "done": done, "environment_feedback": "" if done else "again"}
        TASKS = [{"prompt": "Say 1", "label": "1"}, {"prompt": "Say 2", "label": "2"}]
    '''),
    Pair("skyrl_state", "E104", '''
        STATE = {}
        class Env:
            def __init__(self, env_config=None, extras={}):
                STATE["truth"] = str(extras["reward_spec"]["ground_truth"])
            def init(self, prompt): return prompt, {}
            def step(self, action):
                return {"observations": [], "reward": float(action.strip() == STATE["truth"]), "done": True, "metadata": {}}
            def close(self): pass
        TASKS = [{"prompt": "What is 11 + 8?", "label": 19}, {"prompt": "What is 15 + 8?", "label": 23}]
    ''', '''
        class Env:
            def __init__(self, env_config=None, extras={}):
                self.truth = str(extras["reward_spec"]["ground_truth"])
            def init(self, prompt): return prompt, {}
            def step(self, action):
                return {"observations": [], "reward": float(action.strip() == self.truth), "done": True, "metadata": {}}
            def close(self): pass
        TASKS = [{"prompt": "What is 11 + 8?", "label": 19}, {"prompt": "What is 15 + 8?", "label": 23}]
    '''),
]  # fmt: skip
