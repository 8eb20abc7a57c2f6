"""Codex, which asks for turns over the responses wire."""

from agentrl_envs.harness.agents.record import HarnessAgent

CODEX = HarnessAgent(
    name="codex",
    wire="responses",
    installer="npm",
    packages=("@openai/codex@0.171.0",),
    version_command="{bin}/codex --version",
    command=(
        "{bin}/codex exec --skip-git-repo-check --ephemeral --color never --cd {workdir} - "
        "< {prompt_file}"
    ),
    environment={"CODEX_HOME": "{home}/.codex", "AGENTRL_KEY": "{key}"},
    files={
        ".codex/config.toml": """model = "{model}"
model_provider = "agentrl"
model_context_window = {context}
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.agentrl]
name = "agentrl"
base_url = "{base_url}/v1"
env_key = "AGENTRL_KEY"
wire_api = "responses"
supports_websockets = false

[agents]
enabled = false

[features]
goals = false
plugins = false
apps = false

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[analytics]
enabled = false
""",
    },
    versions_tried=("0.171.0",),
)
