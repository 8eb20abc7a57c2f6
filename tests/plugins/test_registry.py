"""A toy of each registered kind, in a file of its own, named by an import string and run."""

from __future__ import annotations

import textwrap
from pathlib import Path
from statistics import median

import pytest
import torch

from agentrl.batch import StepSettings, build_step
from agentrl.chat import build_chat, build_parser
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.fleet import SyncSection
from agentrl.config.schema import ChatSection
from agentrl.errors import ConfigError, DataError, SyncError
from agentrl.estimators import ESTIMATORS, find_estimator
from agentrl.plugins.registry import Registry
from agentrl.sync import find_transfer, make_receiver, make_sender, resolve_backend
from agentrl.sync.choose import OWN_TRANSFER
from agentrl.testing import ByteTokenizer
from agentrl.tool import FunctionTool
from agentrl.train.losses import find_loss, needs_of
from agentrl.train.prove import ProbeSizes, Proof, prove
from agentrl.types import CallStatus, Message, ToolCall
from agentrl.types.finding import Status
from tests.sync.sync_weights import assert_same, weights
from tests.train.tiny_llama import gradient_of, make_groups, tiny_model, with_model_log_probs


def write(folder: Path, text: str) -> Path:
    """The folder, with the text as `toy.py`; a name is given once, so NAME becomes the folder's."""
    (folder / "toy.py").write_text(textwrap.dedent(text).replace('"NAME"', repr(folder.name)))
    return folder


MEDIAN = """
    from statistics import median

    def toy(group):
        return [reward - median(group.rewards) for reward in group.rewards]
"""
FADING = """
    from agentrl.estimators import advantage_estimator

    @advantage_estimator("NAME", per="token", compares_siblings=False)
    def toy(group):
        return [
            [reward * 0.5**index for index in range(tokens)]
            for reward, tokens in zip(group.rewards, group.num_tokens)
        ]
"""
LOSS = """
    from agentrl.train.losses import TokenLosses, policy_loss

    @policy_loss("NAME", masks=("final_response_mask",), reads=())
    def toy(inputs):
        return TokenLosses(loss_R=-inputs.advantages_R * inputs.log_probs_R)
"""


def one_step(section: AlgorithmSection, *, base: Path) -> dict[str, torch.Tensor]:
    """The gradient of one step of a tiny float64 model, by parameter."""
    find_estimator(section.advantage_estimator, base=base)
    needs = needs_of(section, base=base)
    model = tiny_model()
    batch = build_step(
        with_model_log_probs(model, make_groups()),
        StepSettings(algorithm=section, micro_batch_tokens=64, seed=0, needs=needs),
    )
    return gradient_of(model, batch, section)


def resolved(**changes: str) -> AlgorithmSection:
    return AlgorithmSection(**changes).resolved(horizon=40)


@pytest.mark.parametrize(("text", "per"), [(MEDIAN, "rollout"), (FADING, "token")])
def test_a_toy_estimator_trains(tmp_path: Path, text: str, per: str) -> None:
    base = write(tmp_path, text)
    toy = one_step(resolved(advantage_estimator="toy.py:toy"), base=base)
    assert ESTIMATORS.find("toy.py:toy").per == per
    usual = one_step(resolved(advantage_estimator="dr_grpo"), base=base)
    assert toy.keys() == usual.keys()
    assert all(torch.isfinite(grad).all() for grad in toy.values())
    assert any(not torch.equal(toy[name], usual[name]) for name in toy)


def test_a_toy_estimator_gives_the_numbers_it_says(tmp_path: Path) -> None:
    find_estimator("toy.py:toy", base=write(tmp_path, MEDIAN))
    groups = make_groups()
    section = resolved(advantage_estimator="toy.py:toy")
    step = build_step(groups, StepSettings(algorithm=section, micro_batch_tokens=64, seed=0))
    for group in groups:
        rewards = {r.rollout_id: r.reward for r in group.trajectories if r.rule.reward_trusted}
        middle = median(rewards.values())
        for name, reward in rewards.items():
            # A single rollout has no sibling to be compared with.
            want = reward - middle if len(rewards) > 1 else 0.0
            assert step.advantages[name] == want


def proof(*, base: Path) -> Proof:
    """At the smallest sizes of a run: an estimator sees whole groups, however large."""
    section = resolved(advantage_estimator="toy.py:toy")
    return prove(section, base=base, sizes=ProbeSizes(micro_batch_tokens=1, response_tokens=1))


@pytest.mark.parametrize("text", [MEDIAN, FADING])
def test_a_toy_estimator_is_proven(tmp_path: Path, text: str) -> None:
    found = proof(base=write(tmp_path, text))
    assert found.passed, [check for check in found.checks if check.status is Status.FAIL]
    assert sum(check.name.startswith("estimator") for check in found.checks) == 9


@pytest.mark.parametrize(
    ("body", "check", "words"),
    [
        ("return [float('nan')] * len(group.rewards)", "runs", "expected finite numbers"),
        ("return group.rewards[:-1]", "runs", "advantages of 1 rollouts for a group of 2"),
        ("return [[1.0, 2.0]] * len(group.rewards)", "runs", "declare another `per`"),
        ("return 1 / 0", "runs", "ZeroDivisionError"),
        ("return [r * i for i, r in enumerate(group.rewards)]", "order of siblings", "rollout"),
        ("CALLS.append(1); return [r + len(CALLS) for r in group.rewards]",
         "called again", "state"),
        ("return [r / (max(group.rewards) - min(group.rewards)) for r in group.rewards]",
         "equal rewards", "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_estimator_is_a_finding(
    tmp_path: Path, body: str, check: str, words: str
) -> None:
    base = write(tmp_path, f"CALLS = []\n\ndef toy(group):\n    {body}\n")
    found = proof(base=base)
    assert not found.passed
    broken = {c.name: c.detail for c in found.checks if c.status is Status.FAIL}
    assert words in next(text for name, text in broken.items() if check in name)


def test_an_estimator_that_hides_that_it_compares_is_found_out(tmp_path: Path) -> None:
    base = write(
        tmp_path,
        """
        from agentrl.estimators import advantage_estimator

        @advantage_estimator("NAME", compares_siblings=False)
        def toy(group):
            return [reward - max(group.rewards) for reward in group.rewards]
        """,
    )
    found = proof(base=base)
    broken = {c.name: c.detail for c in found.checks if c.status is Status.FAIL}
    assert "declare compares_siblings=True" in broken["estimator, siblings"]


def test_a_broken_estimator_ends_a_step_with_its_name(tmp_path: Path) -> None:
    base = write(tmp_path, "def toy(group):\n    return [float('inf')] * len(group.rewards)\n")
    with pytest.raises(DataError, match=r"'toy.py:toy' returned \[?inf"):
        one_step(resolved(advantage_estimator="toy.py:toy"), base=base)


def test_a_toy_loss_trains(tmp_path: Path) -> None:
    base = write(tmp_path, LOSS)
    section = resolved(policy_loss="toy.py:toy")
    toy, usual = one_step(section, base=base), one_step(resolved(), base=base)
    # On-policy, REINFORCE and the clipped loss have one gradient.
    for name, grad in toy.items():
        assert torch.allclose(grad, usual[name], rtol=1e-9, atol=1e-12)
    assert find_loss("toy.py:toy").ignored_keys == ("dual_clip", "importance_level")


PARSER = '''
    from agentrl.chat import Found, ToolCallParser

    class Toy(ToolCallParser):
        """`@NAME KEY=VALUE` on a line of its own."""

        name = "toy"
        how_to_call = "To call a tool, write a line @TOOL ARGUMENT=VALUE."

        def find(self, text, start, tools):
            at = start
            for line in text[start:].splitlines(keepends=True):
                if line.startswith("@"):
                    name, *pairs = line[1:].split()
                    arguments = dict(pair.split("=", 1) for pair in pairs)
                    yield Found(start=at, end=at + len(line.rstrip()), name=name,
                                arguments=arguments)
                at += len(line)

        def write(self, call):
            return f"@{call.name} " + " ".join(f"{k}={v}" for k, v in call.arguments.items())
'''


def shout(word: str) -> str:
    """Say a word loudly.

    Args:
        word: the word
    """
    return word.upper()


def test_a_toy_parser_reads_and_writes_calls(tmp_path: Path) -> None:
    name = f"{write(tmp_path, PARSER)}/toy.py:Toy"
    parser = build_parser("toy.py:Toy", base=tmp_path)
    assert parser is not None
    chat = build_chat(ByteTokenizer(), ChatSection(tool_parser=name, template="raw"))
    call = ToolCall(id="1", name="shout", arguments={"word": "hey"}, raw="")
    text = f"I call it.\n{chat.write_call(call)}\nDone."
    (found,) = parser.parse(chat.encode_plain(text), chat).calls
    assert (found.name, found.arguments, found.status) == ("shout", {"word": "hey"}, CallStatus.OK)
    assert found.raw == "@shout word=hey"
    prompt = chat.render_text([Message(role="user", content="Hi")], [FunctionTool(shout)])
    assert "write a line @TOOL" in prompt


def test_what_is_no_parser_is_refused(tmp_path: Path) -> None:
    base = write(tmp_path, "def toy(text):\n    return []\n")
    with pytest.raises(ConfigError, match=r"expected a subclass of agentrl\.chat\.ToolCallParser"):
        build_parser("toy.py:toy", base=base)


TRANSFER = '''
    import pickle
    from pathlib import Path

    from agentrl.engine import WeightTicket
    from agentrl.sync import WeightTransfer

    class Sender:
        backend = ""
        streams = False

        def __init__(self, folder):
            self.folder = folder

        def connect(self, receivers):
            return [{"folder": str(self.folder)}] * receivers

        def announce(self, version):
            raise NotImplementedError

        def send(self, weights, version):
            held = [(name, tensor.clone()) for name, tensor in weights]
            (self.folder / str(version)).write_bytes(pickle.dumps(held))
            return WeightTicket(backend=self.backend, version=version, info={"file": str(version)})

        def close(self):
            pass

    class Receiver:
        def connect(self, info):
            self.folder = Path(info["folder"])

        def receive(self, ticket):
            yield from pickle.loads((self.folder / ticket.info["file"]).read_bytes())

        def close(self):
            pass

    class Toy(WeightTransfer):
        """One pickle a version."""

        name = "toy"
        reads = ("directory",)

        def hindrance(self, route):
            return "" if route.same_host else "a pickle does not travel"

        def sender(self, setup):
            return Sender(setup.directory)

        def receiver(self):
            return Receiver()
'''


def test_a_toy_backend_moves_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write(tmp_path, TRANSFER)
    find_transfer("toy.py:Toy", base=base)
    section = SyncSection(backend="toy.py:Toy")
    where = {"engine_kind": "vllm", "shared_weights": False, "cuda": False}
    with pytest.raises(ConfigError, match="a pickle does not travel"):
        resolve_backend(section, same_host=False, **where)  # type: ignore[arg-type]
    backend = resolve_backend(section, same_host=True, **where)  # type: ignore[arg-type]
    assert backend == f"{tmp_path.resolve()}/toy.py:Toy"  # as the engine's process finds it
    sender = make_sender(section, backend=backend, directory=tmp_path)
    # An engine loads only what it was started with: its tickets come from outside.
    with pytest.raises(SyncError, match=OWN_TRANSFER):
        make_receiver(backend)
    monkeypatch.setenv(OWN_TRANSFER, backend)
    receiver = make_receiver(backend)
    receiver.connect(sender.connect(1)[0])
    assert_same(receiver.receive(sender.send(weights(), 1)), weights())


@pytest.mark.parametrize("find", [find_estimator, find_loss, build_parser, find_transfer])
def test_messages_list_the_registered_names(find) -> None:
    with pytest.raises(ConfigError) as caught:
        find("toj")
    known = {
        find_estimator: ("dr_grpo", "gae", "rloo"),
        find_loss: ("cispo", "gspo", "ppo_clip"),
        build_parser: ("hermes", "mistral", "none"),
        find_transfer: ("auto", "collective", "shm"),
    }
    assert all(name in str(caught.value) for name in known[find])
    assert "import string" in str(caught.value)


def test_a_name_is_given_once() -> None:
    shapes = Registry[object]("shape", own="a shape", entry=lambda name, value: value)
    shapes.add("toy", 1, source=write)
    shapes.add("toy", 2, source=write)
    assert (list(shapes), shapes.find("toy"), shapes.get("other")) == (["toy"], 2, None)
    with pytest.raises(ConfigError, match=r"write already; give .*resolved another name"):
        shapes.add("toy", 3, source=resolved)
