// The page that is a file: some rollouts and their tokens, with all that they need inside.

import { start } from "./app.js";
import contents from "./views/contents.js";
import rollout from "./views/rollout.js";
import tokens from "./views/tokens.js";

start({ runs: contents, rollout, tokens }, "rollouts");
