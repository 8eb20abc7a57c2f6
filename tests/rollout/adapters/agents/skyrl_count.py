"""An environment as one writes it for SkyRL-gym; loaded unchanged by the tests."""


class CountEnv:
    def __init__(self, env_config=None, extras=None):
        self.truth = extras["reward_spec"]["ground_truth"]
        self.max_turns = int(extras.get("max_turns", 5))
        self.hint = env_config.hint
        self.closed = env_config.get("closed", [])
        self.level = extras["extra_info"].get("level", 0)
        self.turns = 0

    def init(self, prompt):
        return [{"role": "system", "content": "Count."}, *prompt], {}

    def step(self, action):
        self.turns += 1
        right = action == str(self.truth)
        done = right or self.turns >= self.max_turns
        said = [] if done else [{"role": "user", "content": self.hint}]
        return {"observations": said, "reward": 1 if right else 0, "done": done, "metadata": {}}

    def get_metrics(self):
        return {"steps": self.turns, "level": self.level, "note": "text"}

    def close(self):
        self.closed.append(self.truth)


class Broken(CountEnv):
    def step(self, action):
        return {"rewards": 1}


class Blocks(CountEnv):
    async def init(self, prompt):
        return prompt
