"""Qwen Code, the last version that runs with Node.js 20."""

from agentrl_envs.harness.agents.record import HarnessAgent

QWEN_CODE = HarnessAgent(
    name="qwen-code",
    wire="chat",
    installer="npm",
    packages=("@qwen-code/qwen-code@0.15.10",),
    version_command="{bin}/qwen --version",
    command=(
        "{bin}/qwen --bare --yolo --auth-type openai --model {model} --chat-recording=false "
        "< {prompt_file}"
    ),
    environment={
        "OPENAI_BASE_URL": "{base_url}/v1",
        "OPENAI_API_KEY": "{key}",
        "OPENAI_MODEL": "{model}",
    },
    files={
        ".qwen/settings.json": """{
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "model": {"generationConfig": {"contextWindowSize": {context}}},
  "general": {"enableAutoUpdate": false}
}
""",
    },
    versions_tried=("0.15.10",),
)
