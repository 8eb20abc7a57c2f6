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
import tokens from "./views/tokens.js";

start({ runs, run, step, group, rollout, tokens, examples, example, find }, "runs");
