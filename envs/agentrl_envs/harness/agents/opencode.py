"""OpenCode, with its own prompt and tools."""

from agentrl_envs.harness.agents.record import HarnessAgent

OPENCODE = HarnessAgent(
    name="opencode",
    wire="chat",
    installer="npm",
    packages=("opencode-ai@1.18.33",),
    version_command="{bin}/opencode --version",
    # A title that is given spares the rollout a request for one.
    command="{bin}/opencode run --pure --auto --title task --model agentrl/{model} < {prompt_file}",
    environment={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    files={
        ".config/opencode/opencode.json": """{
  "autoupdate": false,
  "share": "disabled",
  "permission": "allow",
  "enabled_providers": ["agentrl"],
  "small_model": "agentrl/{model}",
  "provider": {
    "agentrl": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "agentrl",
      "options": {"baseURL": "{base_url}/v1", "apiKey": "{key}"},
      "models": {
        "{model}": {"name": "{model}", "limit": {"context": {context}, "output": {reply}}}
      }
    }
  }
}
""",
    },
    versions_tried=("1.18.33",),
)
