// The page that a server sends: every view.

import { start } from "./app.js";
import example from "./views/example.js";
import examples from "./views/examples.js";
import find from "./views/find.js";
import group from "./views/group.js";
import rollout from "./views/rollout.js";
import run from "./views/run.js";
import runs from "./views/runs.js";
import step from "./views/step.js";
import compare from "./views/compare/compare.js";
import pair from "./views/compare/pair.js";
import hacking from "./views/hacking/hacking.js";
import task from "./views/tasks/task.js";
import tasks from "./views/tasks/tasks.js";
import tokens from "./views/tokens.js";

const places = { runs, run, step, group, rollout, tokens, examples, example, find };
start({ ...places, tasks, task, compare, pair, hacking }, "runs");
