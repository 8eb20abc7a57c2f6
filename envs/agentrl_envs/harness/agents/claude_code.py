"""Claude Code, held to three tools and a short prompt of its own."""

from agentrl_envs.harness.agents.record import HarnessAgent

CLAUDE_CODE = HarnessAgent(
    name="claude-code",
    wire="messages",
    installer="npm",
    packages=("@anthropic-ai/claude-code@2.1.332",),
    version_command="{bin}/claude --version",
    # The whole offer of tools and the usual prompt take more tokens than small models have.
    command=(
        "{bin}/claude --print --bare --model {model} --tools Bash,Read,Edit "
        "--dangerously-skip-permissions --no-session-persistence --strict-mcp-config "
        "--system-prompt 'You are a coding agent. Work on the task with your tools until it is "
        "done, then say what you did.' < {prompt_file}"
    ),
    environment={
        "ANTHROPIC_BASE_URL": "{base_url}",
        "ANTHROPIC_API_KEY": "{key}",
        "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{reply}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        # It is root in some sandboxes, where it refuses to skip permissions without this.
        "IS_SANDBOX": "1",
    },
    versions_tried=("2.1.332",),
)
