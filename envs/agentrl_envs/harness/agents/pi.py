"""pi, a small coding agent with four tools: read, bash, edit and write."""

from agentrl_envs.harness.agents.record import HarnessAgent

PI = HarnessAgent(
    name="pi",
    wire="chat",
    installer="npm",
    packages=("@mariozechner/pi-coding-agent@0.73.1",),
    version_command="{bin}/pi --version",
    command=(
        "{bin}/pi --print --mode text --provider agentrl --model {model} --no-session "
        "--no-extensions --no-skills --no-prompt-templates --no-themes < {prompt_file}"
    ),
    environment={"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
    files={
        ".pi/agent/models.json": """{
  "providers": {
    "agentrl": {
      "baseUrl": "{base_url}/v1",
      "api": "openai-completions",
      "apiKey": "{key}",
      "compat": {"supportsDeveloperRole": false, "supportsReasoningEffort": false},
      "models": [
        {
          "id": "{model}",
          "input": ["text"],
          "contextWindow": {context},
          "maxTokens": {reply}
        }
      ]
    }
  }
}
""",
        # Its own reserve for an answer is larger than the whole context of a small model.
        ".pi/agent/settings.json": """{
  "compaction": {"reserveTokens": {reply}, "keepRecentTokens": {reply}}
}
""",
    },
    versions_tried=("0.73.1",),
)
