"""Every input: what it accepts, what it refuses, and that the refusal names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.certificates import make_certificate
from support.workflow_expressions import interpolate

from keystone_action.errors import UsageError
from keystone_action.github.inputs import InputReader, read_options, variable
from keystone_action.github.outputs import output_values, planned_values
from keystone_action.options.model import Options
from keystone_action.scoring.results import RunResult

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def read(environ: dict[str, str]) -> Options:
    reader = InputReader(environ)
    found = read_options(reader)
    reader.unknown()
    reader.raise_problems()
    return found


def options(workspace: Path, inputs: dict[str, str] | None = None, **environ: str) -> Options:
    given = {variable(name): value for name, value in (inputs or {}).items()}
    return read({"GITHUB_WORKSPACE": str(workspace), **environ, **given})


def refusal(workspace: Path, inputs: dict[str, str], **environ: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        options(workspace, inputs, **environ)
    return caught.value


def test_nothing_set_gives_the_defaults(tmp_path: Path) -> None:
    found = options(tmp_path)
    assert found.cells.specs == ("keystone.yaml", "keystone.yml", "evals/**")
    assert found.caller.directory == found.caller.workspace == tmp_path.resolve()
    assert found.reports.folder == tmp_path.resolve() / "keystone-results"
    assert (
        found.reports.annotations,
        found.reports.job_summary,
        found.verdict.fail_on,
        found.pull_request.comment,
    ) == (9, True, "threshold", "auto")


def test_everything_set_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "temp").mkdir()
    found = options(
        tmp_path,
        {
            "spec": " a.yaml \n b,c ,\n",
            "threshold": "0.85",
            "replicas": "3",
            "params": "model=a,b\nn = 2 ",
            "tags": "fast, nightly",
            "sandbox": "docker",
            "max-concurrency": "4",
            "shard": "2/3",
            "fail-on": "never",
            "fail-on-skipped": "TRUE",
            "fail-on-stale": "true",
            "gateway": "replay",
            "comment": "never",
            "comment-key": "mine",
            "status-context": "my gate",
            "allow-pull-request-target": "true",
            "annotations": "0",
            "summary": "false",
            "judge-fast": "anthropic:a",
            "judge-strong": "openai:b",
            "env": "DB_PASSWORD, API_KEY",
            "timeout": "1h30m",
            "cache-dir": "../temp/cache",
            "output-dir": "out",
            "working-directory": "sub",
            "registry-mirror": "https://mirror.example:5000/hub/",
            "registry-username": "ada",
            "registry-password": "hunter22",
            "docker-network": "github_network_0123",
            "github-token": "ghs_secret",
        },
        RUNNER_TEMP=str(tmp_path / "temp"),
    )
    root = tmp_path.resolve()
    assert found == Options.of(
        workspace=root,
        directory=root / "sub",
        output=root / "sub" / "out",
        specs=("a.yaml", "b", "c"),
        threshold=0.85,
        replicas=3,
        params={"model": "a,b", "n": "2"},
        tags=("fast", "nightly"),
        sandbox="docker",
        max_concurrency=4,
        shard=(2, 3),
        fail_on="never",
        fail_on_skipped=True,
        fail_on_stale=True,
        gateway="replay",
        comment="never",
        comment_key="mine",
        status_context="my gate",
        allow_pull_request_target=True,
        annotations=0,
        job_summary=False,
        judge_fast="anthropic:a",
        judge_strong="openai:b",
        env=("DB_PASSWORD", "API_KEY"),
        timeout=5400.0,
        cache_dir=root / "temp" / "cache",
        registry_mirror="mirror.example:5000/hub",
        registry_username="ada",
        registry_password="hunter22",
        docker_network="github_network_0123",
        github_token="ghs_secret",
    )
    assert "ghs_secret" not in repr(found)
    assert "hunter22" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("threshold", "85%", "a number from 0 to 1"),
        ("threshold", "nan", "a number from 0 to 1"),
        ("threshold", "inf", "a number from 0 to 1"),
        ("threshold", "-0.1", "a number from 0 to 1"),
        ("threshold", "1.01", "a number from 0 to 1"),
        ("threshold", "0_1", "a number from 0 to 1"),
        ("threshold", "٠", "a number from 0 to 1"),
        ("replicas", "0", "a whole number from 1"),
        ("replicas", "2.0", "a whole number from 1"),
        ("replicas", "٣", "a whole number from 1"),
        ("max-concurrency", "9999", "a whole number from 1 to 1,024"),
        ("annotations", "-1", "a whole number from 0 to 50"),
        ("annotations", "51", "a whole number from 0 to 50"),
        ("fail-on-skipped", "yes", "true or false"),
        ("fail-on-stale", "stale", "true or false"),
        ("summary", "1", "true or false"),
        ("shard", "auto", "no variable of this job"),
        ("shard", "0/3", "i/N"),
        ("shard", "4/3", "i/N"),
        ("shard", "1", "i/N"),
        ("fail-on", "Threshold", "one of threshold, regression, error, never"),
        ("sandbox", "podman", "one of auto, process, docker"),
        ("registry-mirror", "mirror", "a registry"),
        ("registry-mirror", "https://", "a registry"),
        ("registry-mirror", "ftp://mirror.example", "a registry"),
        ("registry-mirror", "ada@mirror.example", "a registry without a user"),
        ("registry-username", "ada", "registry-password is not set"),
        ("registry-password", "hunter22", "registry-username is not set"),
        ("docker-network", "host", "a network of the job's own"),
        ("docker-network", "container:x", "a network of the job's own"),
        ("docker-network", "--privileged", "the name of a network"),
        ("mode", "evaluate", "one of run, plan, merge, comment"),
        ("mode", "comment", "input results is not set; expected the one folder"),
        ("mode", "plan", "input shards is not set; expected how many jobs"),
        ("mode", "merge", "input results is not set; expected the folder"),
        ("shards", "0", "a whole number from 1 to"),
        ("shards", "257", "a whole number from 1 to 256"),
        ("shards", "3", "nothing unless mode is plan"),
        ("results", "downloaded", "nothing unless mode is merge or comment"),
        ("results", "../elsewhere", "inside of the workspace"),
        ("comment", "sometimes", "one of auto, always, on-failure, never"),
        ("status-context", "a\nb", "one line of at most 255"),
        ("status-context", "x" * 256, "one line of at most 255"),
        ("ca-bundle", "missing.pem", "can't be read"),
        ("allow-pull-request-target", "yes", "true or false"),
        ("timeout", "soon", "a duration"),
        ("timeout", "0", "a duration"),
        ("params", "model", "name=value"),
        ("params", "=a", "name=value"),
        ("params", "a=1\na=2", "a once"),
        ("env", "A B", "names of environment variables"),
        ("env", "KEY=value", "names of environment variables"),
        ("env", "GITHUB_TOKEN", "variables of your own"),
        ("env", "ACTIONS_RUNTIME_TOKEN", "variables of your own"),
        ("env", "INPUT_GITHUB-TOKEN", "names of environment variables"),
        ("env", "INPUT_TOKEN", "variables of your own"),
        ("output-dir", "..", "inside of the workspace"),
        ("output-dir", "/etc", "inside of the workspace"),
        ("output-dir", ".", "a folder of its own"),
        ("output-dir", ".git/keystone", "outside of .git"),
        ("output-dir", "a\0b", "a path"),
        ("output-dir", "README.md", "a folder; there is a file of that name"),
        ("output-dir", "README.md/results", "a folder; there is a file of that name"),
        ("cache-dir", "../elsewhere", "inside of the workspace"),
        ("max-cost-usd", "-1", "a number from 0 to 1,000,000,000"),
        ("max-cost-usd", "$5", "a number from 0 to 1,000,000,000"),
        ("max-cost-usd", "nan", "a number from 0 to 1,000,000,000"),
        ("mode", "x" * 101, f"is '{'x' * 100}…'; expected"),
        ("working-directory", "missing", "a directory that exists"),
        ("working-directory", "..", "inside of the workspace"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_found_and_expected(
    tmp_path: Path, name: str, value: str, expected: str
) -> None:
    (tmp_path / "README.md").touch()
    error = refusal(tmp_path, {name: value})
    assert name in error.message
    assert expected in error.message
    assert error.exit_code == 2


@pytest.mark.parametrize("name", ["results.json", "journal.jsonl", "other"])
def test_results_that_are_there_already_are_refused_by_the_name_of_the_input(tmp_path: Path, name: str) -> None:
    """Those that a change has committed above all. A link leads whoever uploads the folder to files of the machine."""
    (tmp_path / "keystone-results").mkdir()
    (tmp_path / "keystone-results" / name).symlink_to("nowhere")
    message = refusal(tmp_path, {}).message
    assert "input output-dir is 'keystone-results'; expected a folder without results" in message
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".gitignore").write_text("*")
    assert options(tmp_path, {"output-dir": "other"}).reports.folder == tmp_path / "other"
    assert options(tmp_path, {"mode": "plan", "shards": "2"}).jobs.mode == "plan"


@pytest.mark.parametrize(
    "inputs",
    [
        {"registry-mirror": "https://ada:hunter22@mirror.example"},
        {"registry-password": "hunter22"},
        {"registry-password": "hunter22\x07", "registry-username": "ada"},
    ],
)
def test_a_password_is_not_repeated(tmp_path: Path, inputs: dict[str, str]) -> None:
    error = refusal(tmp_path, inputs)
    assert "hunter22" not in error.message + error.help


def test_a_link_out_of_the_workspace_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "out").symlink_to(tmp_path)
    assert "output-dir" in refusal(workspace, {"output-dir": "out/results"}).message


def test_money(tmp_path: Path) -> None:
    assert options(tmp_path, {}).running.max_cost_usd is None
    assert options(tmp_path, {"max-cost-usd": "0.50"}).running.max_cost_usd == 0.5
    assert options(tmp_path, {"max-cost-usd": "0"}).running.max_cost_usd == 0


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"threshold": "x", "mode": "plan", "replicas": "-1"}).message
    assert message.startswith("3 inputs are wrong:")
    assert all(name in message for name in ("threshold", "mode", "replicas"))


def test_a_secret_is_not_repeated(tmp_path: Path) -> None:
    inputs = {"registry-password": "hunter22", "registry-username": "ada-login", "threshold": "x"}
    message = refusal(tmp_path, inputs).message
    assert "hunter22" not in message
    assert "ada-login" not in message


def test_a_job_that_plans(tmp_path: Path) -> None:
    found = options(tmp_path, {"mode": "plan", "shards": "3", "replicas": "2"})
    assert (found.jobs.mode, found.jobs.shards, found.cells.replicas, found.jobs.results) == ("plan", 3, 2, ())


def test_a_job_that_joins(tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    inputs = {"mode": "merge", "results": "shards\nmore, ../temp/other", "working-directory": "sub"}
    (tmp_path / "sub").mkdir()
    found = options(tmp_path, inputs, RUNNER_TEMP=str(tmp_path / "temp"))
    root = tmp_path.resolve()
    assert found.jobs.results == (root / "sub" / "shards", root / "sub" / "more", root / "temp" / "other")


@pytest.mark.parametrize("mode", [{"mode": "plan", "shards": "3"}, {"mode": "merge", "results": "shards"}])
def test_a_shard_is_for_jobs_that_run(tmp_path: Path, mode: dict[str, str]) -> None:
    assert f"nothing, since mode is {mode['mode']}" in refusal(tmp_path, {**mode, "shard": "1/3"}).message


@pytest.mark.parametrize("environ", [{}, {"GITHUB_WORKSPACE": "/does/not/exist"}])
def test_without_a_workspace_there_is_no_step(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="GITHUB_WORKSPACE"):
        read(environ)


@pytest.mark.parametrize("misspelt", ["fail_on_skipped", "threshhold", "max_cost_usd", "output-dirs"])
def test_a_misspelt_input_is_refused(tmp_path: Path, misspelt: str) -> None:
    assert "did you mean" in refusal(tmp_path, {misspelt: "1"}).message


def test_an_unrelated_variable_only_warns(tmp_path: Path) -> None:
    given = {"INPUT_QUARTZ": "1", "INPUT_ENTRYPOINT": "/x", "INPUT_ARGS": "y", "INPUT_EMPTY": ""}
    reader = InputReader({"GITHUB_WORKSPACE": str(tmp_path), **given})
    read_options(reader)
    assert reader.unknown() == ("there is no input quartz; it has no effect",)


def test_the_status_has_a_name_unless_it_is_empty(tmp_path: Path) -> None:
    named = (({}, "keystone/evaluate"), ({"status-context": "my gate"}, "my gate"), ({"status-context": " "}, ""))
    for inputs, name in named:
        assert options(tmp_path, inputs, GITHUB_JOB="evaluate").pull_request.status_context == name


def test_a_job_that_comments(tmp_path: Path) -> None:
    inputs = {"mode": "comment", "results": "downloaded", "comment": "on-failure", "comment-key": "mine"}
    found = options(tmp_path, inputs)
    assert (found.jobs.mode, found.jobs.results) == ("comment", (tmp_path.resolve() / "downloaded",))
    assert (found.pull_request.comment, found.pull_request.comment_key) == ("on-failure", "mine")
    assert "the one folder" in refusal(tmp_path, {**inputs, "results": "a, b"}).message


def test_certificates_are_read_before_anything_runs(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    pem = options(tmp_path, {"ca-bundle": "certificate.pem"}).pull_request.ca_bundle
    assert pem is not None
    assert pem.startswith("-----BEGIN CERTIFICATE-----")
    assert options(tmp_path, {"ca-bundle": pem}).pull_request.ca_bundle == pem


def test_params_on_one_line(tmp_path: Path) -> None:
    assert options(tmp_path, {"params": "a=1,2, b=x=y,c="}).cells.params == {"a": "1,2", "b": "x=y", "c": ""}


def test_action_yml_declares_exactly_what_is_read() -> None:
    reader = InputReader({"GITHUB_WORKSPACE": str(ROOT)})
    read_options(reader)
    assert set(ACTION["inputs"]) == reader.names


def inputs_of_a_job(*, index: int, total: int, job: str = "evaluate") -> dict[str, str]:
    """The defaults of action.yml, as the runner fills them in."""
    github = {"token": "t", "job": job, "workflow_ref": "w", "action": "a"}
    contexts = {"github": github, "strategy": {"job-index": index, "job-total": total}}
    return {
        name: interpolate(entry["default"], contexts) for name, entry in ACTION["inputs"].items() if "default" in entry
    }


def test_jobs_of_one_workflow_have_a_comment_and_a_status_each_by_default(tmp_path: Path) -> None:
    jobs = [(0, 1, "evaluate"), (0, 1, "other"), (0, 2, "models"), (1, 2, "models")]
    found = [options(tmp_path, inputs_of_a_job(index=index, total=total, job=job)) for index, total, job in jobs]
    assert len({one.pull_request.comment_key for one in found}) == len(jobs)
    assert [one.pull_request.status_context for one in found] == [
        "keystone/evaluate",
        "keystone/other",
        "keystone/models/0",
        "keystone/models/1",
    ]


def test_defaults_of_action_yml_are_those_of_the_code(tmp_path: Path) -> None:
    inputs = inputs_of_a_job(index=0, total=1)
    environ = {"GITHUB_JOB": "evaluate", "GITHUB_WORKFLOW_REF": "w", "GITHUB_ACTION": "a"}
    assert options(tmp_path, inputs, **environ) == options(tmp_path, {"github-token": "t"}, **environ)


def test_every_input_and_output_is_described() -> None:
    for entry in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert entry["description"].strip().endswith((".", ")"))


def test_action_yml_declares_exactly_what_is_written(tmp_path: Path) -> None:
    run = RunResult(
        run_id="",
        keystone_version="0",
        git_sha=None,
        verdict="error",
        composite=None,
        started_at="",
        duration_s=0.0,
        specs=(),
    )
    assert set(ACTION["outputs"]) == output_values(run, directory=None, workspace=tmp_path).keys()
    assert set(ACTION["outputs"]) == planned_values("", 0).keys()


@given(st.dictionaries(st.sampled_from(sorted(ACTION["inputs"])), st.text(max_size=30), max_size=5))
def test_no_input_breaks_the_reader(inputs: dict[str, str]) -> None:
    try:
        found: Options | str = options(ROOT, inputs)
    except UsageError as error:
        found = error.message
    assert "input" in found if isinstance(found, str) else found.reports.folder.is_relative_to(ROOT)


def test_each_path_of_a_list_may_begin_with_the_runners_name_of_the_workspace(tmp_path: Path) -> None:
    """It translates the first one only."""
    there = {"RUNNER_WORKSPACE": "/srv/checkouts/agents", "GITHUB_REPOSITORY": "octo/agents"}
    lines = f"{tmp_path}/a.yaml, /srv/checkouts/agents/agents/b.yaml\n/srv/checkouts/agents/agentsmith/c.yaml"
    found = options(tmp_path, {"spec": lines}, **there)
    assert found.cells.specs == (f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml", "/srv/checkouts/agents/agentsmith/c.yaml")


def test_where_a_path_may_lie_is_said_in_full(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    message = refusal(tmp_path / "w", {"cache-dir": "/var/cache"}, RUNNER_TEMP=str(tmp_path)).message
    assert f"inside of the workspace ({tmp_path / 'w'}) or the runner's temporary folder ({tmp_path})" in message
