"""The script agent: nothing to install, for trying sandboxes, environments and models."""

from importlib.resources import files

from agentrl_envs.harness.agents import HarnessAgent

SCRIPT = HarnessAgent(
    name="script",
    wire="chat",
    command="python3 {home}/.agentrl/program.py {prompt_file}",
    environment={
        "OPENAI_BASE_URL": "{base_url}/v1",
        "OPENAI_API_KEY": "{key}",
        "AGENT_MODEL": "{model}",
    },
    files={
        ".agentrl/program.py": files(__name__).joinpath("program.py").read_text(encoding="utf-8")
    },
)
"""`env.args.agent: agentrl_envs.harness.script:SCRIPT`."""
