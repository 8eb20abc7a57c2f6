"""mini-swe-agent, which has one tool, bash, and asks for turns through litellm."""

from agentrl_envs.harness.agents.record import HarnessAgent

MINI_SWE_AGENT = HarnessAgent(
    name="mini-swe-agent",
    wire="chat",
    installer="pip",
    packages=("mini-swe-agent==2.4.6",),
    version_command="{bin}/mini --help",
    command=(
        "{bin}/mini --yolo --exit-immediately --cost-limit 0 --model openai/{model} "
        '--output {home}/trajectory.json --task "$(cat {prompt_file})"'
    ),
    environment={
        "OPENAI_BASE_URL": "{base_url}/v1",
        "OPENAI_API_KEY": "{key}",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        # A refused request stays refused; the SDK below repeats those that may succeed.
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        # Prices come with the package instead of from the network.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    versions_tried=("2.4.6",),
)
