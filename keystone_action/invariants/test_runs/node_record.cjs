// Has each run of node's test runner write a report for us, whatever started it; a program of its own, which NODE_OPTIONS
// has every node load before anything of the workspace.
//
// `guard.json` beside it names a file of keys. A run wipes one out, and its report goes beside the file, by the key's
// number: so a run that the code under test has ended (`process.exit`) is a key that is gone, without a whole report.
// Runs inside of another run are what the tests themselves start: only the outermost one counts.
//
// It runs under whatever node the sandbox has. One without a JUnit reporter is left alone, and so is a run of chosen tests
// only: of a file that has none of them, some versions tell no more than of one that was ended.
"use strict";

const fs = require("fs");
const path = require("path");

const KEY_BYTES = 32;
const MARK = "KEYSTONE_INSIDE_TESTS";
const CHOOSING = /^--test-(only|name-pattern|skip-pattern)(=|$)/;

// The options that this node was given, by whatever way.
function options() {
  return [...(process.env.NODE_OPTIONS || "").split(/\s+/), ...process.execArgv];
}

function hasReporter() {
  try {
    return typeof require("node:test/reporters").junit === "function";
  } catch (error) {
    return false;
  }
}

// Takes a key; returns where the report goes.
function takeReport(keys) {
  const file = fs.openSync(keys, "r+");
  const key = Buffer.alloc(KEY_BYTES);
  for (let number = 0; fs.readSync(file, key, 0, KEY_BYTES, number * KEY_BYTES) === KEY_BYTES; number++) {
    if (key.every((byte) => byte === 0)) continue;
    const report = `${keys}-${number}`;
    try {
      fs.closeSync(fs.openSync(report, "wx"));
    } catch (error) {
      if (error.code === "EEXIST") continue; // a run beside this one was quicker
      throw error;
    }
    fs.writeSync(file, Buffer.alloc(KEY_BYTES), 0, KEY_BYTES, number * KEY_BYTES);
    return report;
  }
  throw new Error("too many were started");
}

// Options that add our reporter to those of the command, or to the usual one.
function reporters(report) {
  const count = (name) => options().filter((word) => word === name || word.startsWith(`${name}=`)).length;
  const [chosen, places] = [count("--test-reporter"), count("--test-reporter-destination")];
  const added = [];
  if (chosen === 0 && places === 0) {
    const usual = process.stdout.isTTY || parseInt(process.versions.node, 10) >= 23 ? "spec" : "tap";
    added.push(`--test-reporter=${usual}`);
  }
  if (chosen <= 1 && places === 0) added.push("--test-reporter-destination=stdout");
  return [...added, "--test-reporter=junit", `--test-reporter-destination=${report}`];
}

function startAnew() {
  const order = JSON.parse(fs.readFileSync(path.join(__dirname, "guard.json"), "utf8"));
  const words = [...process.execArgv, ...reporters(takeReport(order.node_keys)), ...process.argv.slice(1)];
  const env = { ...process.env, [MARK]: "1" };
  const ended = require("child_process").spawnSync(process.execPath, words, { stdio: "inherit", env });
  if (ended.error) throw ended.error;
  if (ended.signal) process.kill(process.pid, ended.signal);
  process.exit(ended.status === null ? 1 : ended.status);
}

function isRun() {
  const isInside = process.env.NODE_TEST_CONTEXT || MARK in process.env;
  return process.execArgv.includes("--test") && !isInside && !options().some((word) => CHOOSING.test(word));
}

if (isRun() && hasReporter()) {
  try {
    startAnew();
  } catch (error) {
    process.stderr.write(`Keystone can't confirm this run of node's tests: ${error.message}\n`);
    process.exit(1);
  }
}
