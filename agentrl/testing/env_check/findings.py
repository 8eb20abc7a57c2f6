"""The codes of the environment check, as a linter lists them, and how to fix what they report."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.types.finding import Finding, fail

FIXES: Mapping[str, str] = {
    "E101": "Make the constructor and reset work for every task of the dataset.",
    "E102": "Put everything an episode changes into reset, so that a second reset starts afresh.",
    "E103": "Return Observation(content=...) with text or a tuple of Message.",
    "E104": "Keep state on self, not on the class or the module; share no port, file or lock.",
    "E105": "Draw from random.Random(self.context.seed); use no time and no global state.",
    "E106": "Sort what comes out of a set, use no hash() of text: both change with the process.",
    "E107": "Read no clock and no local time: take what matters from the task or the seed.",
    "E108": "Copy what you change of a task: all rollouts of its group get the same one.",
    "E109": "Make the same tasks in every process: seed what is drawn, sort what is listed.",
    "E201": "Accept any text a model may write; judge it, do not raise.",
    "E202": "Accept an empty action; a model does write nothing at times.",
    "E203": "Accept an action of a megabyte; cut it before you search or store it.",
    "E204": "Accept control characters, lone surrogates and malformed tool calls.",
    "E205": "Finish well inside rollout.env_timeout_s; put a limit on what you await.",
    "E206": "Await instead of blocking: asyncio.sleep, asyncio.to_thread, or the sandbox.",
    "E207": "Return done=True at some point, at the latest when action.last is set.",
    "E208": "Run no slow search over a whole action, such as a pattern that backtracks.",
    "E209": "Write reset, step and close as `async def`, and await what takes time.",
    "E210": "Let CancelledError through: an `except BaseException` or bare `except` raises again.",
    "E211": "Never eval or exec what a model wrote in this process; parse it, or use the sandbox.",
    "E301": "Return rewards as one float.",
    "E302": "Return a finite reward; guard divisions and logarithms.",
    "E303": "Keep the sum of an episode's rewards inside reward_range, or widen reward_range.",
    "E304": "Return scores between 0 and 1, or None.",
    "E305": "Return environment_feedback as text or a tuple of Message.",
    "E306": "Return extra_logs and reward_parts as dictionaries of finite numbers.",
    "E307": "Return done as True or False.",
    "E308": "Return StepResult(...), or a dictionary with at least 'rewards' and 'done'.",
    "E309": "Return explanation=Explanation(...) with texts, a dictionary of them, or None.",
    "E310": "Set wants_history; begin a history with the user and end it before the model's turn.",
    "E311": "Return data as JSON: texts, numbers, lists and dictionaries.",
    "E401": "After done, raise or return done=True again; never go on.",
    "E402": "Make close work at any moment: before reset, after an error, after the end.",
    "E403": "Make close idempotent: a second call does nothing.",
    "E404": "Cancel and await your asyncio tasks in close.",
    "E405": "Join your threads in close.",
    "E406": "Kill and reap your child processes in close; better, run them in the sandbox.",
    "E407": "Await every command you start in the sandbox before close returns.",
    "E408": "Delete the files of an episode in close, or use one tempfile.TemporaryDirectory.",
    "E409": "Close files, sockets and connections in close.",
    "E410": "Leave alone what belongs to the process: its folder, signals, clock, streams, locale.",
    "E501": "Return text from solution, or a list of texts and ToolCalls, or None; do not raise.",
    "E502": "Make solution solve its task, or leave it out: preflight measures the reward by it.",
    "E503": "Compare the whole answer with the label, and pay nothing for what is no answer.",
    "E504": "Keep the answer from the model: neither prompt, feedback nor tools may say it.",
    "E505": "Let the reward and the score agree: what is solved earns most.",
    "E601": "Raise ToolError for a call that cannot be done; any other error ends the rollout.",
    "E602": "Check arguments in validate, or use FunctionTool; raise ToolError for wrong ones.",
    "E603": "Return text that a model can read from every call.",
}
"""Every code and how to fix what it reports."""


def broken(code: str, message: str) -> Finding:
    """A finding about an environment.

    Args:
        code: as in `FIXES`; the name of the finding.
        message: what happened, with what was sent and what came back.
    """
    return fail(code, message, FIXES[code])
