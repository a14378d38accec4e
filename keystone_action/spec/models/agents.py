"""`agent`: what is put to the test, and how it is started (spec.md 1.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from keystone_action.spec.models.fields import (
    AuthorPath,
    Duration,
    PlainText,
    ShellCommand,
    StrictModel,
    Template,
    Text,
    TextOrList,
    TextOrMapping,
    WorkspacePath,
    by_type,
    text_like,
)


class AgentOutput(StrictModel):
    """Where the agent's answer is, when it is not simply what it printed. Give exactly one of the keys."""

    file: Annotated[str, WorkspacePath()] | None = None
    """The answer is the text of this file of the workspace. Where the agent left no such file there is no answer, and
    checks that read it fail.

    Example: `answer.md`
    """
    json_from: Literal["stdout"] | None = Field(default=None, alias="json")
    """`stdout`: what the agent printed is one JSON document `{output, tool_calls, token_usage}` (an AgentResult),
    whose `output` is the answer. Checks of tools and tokens read the rest of it. Where it is malformed, the checks
    that read it fail.

    Example: `stdout`
    """


TraceFormat = Literal["keystone", "claude", "codex", "gemini", "mini", "touchstone", "otel"]


class AgentTrace(StrictModel):
    """The transcript that the agent writes of itself: a file of the workspace, or what it prints. Give exactly one of
    `path` and `stdout`. It is the agent's own word: where the model gateway saw the requests to models, its record
    counts.
    """

    format: TraceFormat
    """How the transcript is written; the page on traces describes each format.

    Example: `claude`
    """
    path: Annotated[str, WorkspacePath()] | None = None
    """The file of the workspace that holds the transcript.

    Example: `trace.jsonl`
    """
    stdout: Literal[True] | None = None
    """`true`: the transcript is what the agent prints on its standard output.

    Example: `true`
    """


class AgentBase(StrictModel):
    """What all agents have. An agent starts in the workspace, finds the prompt in `KEYSTONE_PROMPT` and in the file
    that `KEYSTONE_PROMPT_FILE` names, and the addresses of services in `KEYSTONE_SERVICE_<NAME>_HOST`, `_PORT` and
    `_URL`.
    """

    timeout: Duration = 600.0
    """How long the agent may run. At the limit it is stopped with all its processes. The report says so, and what it
    left is graded all the same; with `must_exit_zero` the cell fails.

    Example: `5m`
    Example: `90`
    """
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of the agent. It sees these, those of `setup.env`, `KEYSTONE_*` and a minimal `PATH`,
    `HOME`, `LANG` and `TMPDIR`, and nothing else of yours. A value from your own environment is written
    `{{ env.NAME }}`, a secret `{{ secrets.NAME }}`.

    Example: `{LOG_LEVEL: debug, REGION: "{{ env.REGION }}"}`
    """
    dir: Annotated[str, AuthorPath("directory", withheld=False)] | None = None
    """The folder of the agent's own code, relative to the spec. The agent can read it and not change it, at
    `{{ agent.dir }}` and `KEYSTONE_AGENT_DIR`. A `python` agent needs one.

    Example: `agent`
    """
    trace: AgentTrace | None = None
    """The transcript that the agent writes of itself, for checks of tools, tokens and cost. Not needed where requests
    to models pass the gateway. Without either, these checks are skipped.

    Example: `{format: keystone, path: trace.jsonl}`
    """
    output: TextOrMapping[Literal["stdout"], AgentOutput] = "stdout"
    """Where the agent's answer is: `stdout`, `{file: path}` or `{json: stdout}`. Checks and judges read it as
    `agent_output`.

    Example: `stdout`
    Example: `{file: answer.md}`
    """
    stdin: Literal["prompt"] | None = None
    """`prompt`: the agent gets the prompt on its standard input. Otherwise its standard input is empty.

    Example: `prompt`
    """
    user: Annotated[str, WithJsonSchema({"const": "unprivileged"})] = "unprivileged"
    """The user that the agent runs as. There is one choice in this version: a user without privileges.

    Example: `unprivileged`
    """
    must_exit_zero: bool = False
    """Whether the cell fails (composite 0) when the agent ends with another exit code than 0, or runs out of time,
    or says in its transcript that it failed, or a conversation (`task.turns`) ends before all was said. Otherwise the
    exit code is shown and only the checks decide.

    Example: `true`
    """


class CommandAgent(AgentBase):
    """Any program, started by a command line."""

    type: Literal["command"]
    command: TextOrList[Annotated[str, Field(min_length=1), ShellCommand()], list[str]]
    """What is run in the workspace. A text goes through `sh -c`, a list is started as it is. In a text,
    `{{ task.prompt }}` and `{{ record.… }}` are refused, since a shell would read them: use `"$KEYSTONE_PROMPT"`,
    or a list.

    Example: `python3 "$KEYSTONE_AGENT_DIR/agent.py"`
    Example: `[my-agent, --prompt, "{{ task.prompt }}"]`
    """


class CliAgent(AgentBase):
    """A program and its arguments, started without a shell."""

    type: Literal["cli"]
    binary: Annotated[str, Field(min_length=1)]
    """The program: a name that is looked up on the sandbox's `PATH`, or a path. When it is missing, the cell is an
    error, not a failed agent.

    Example: `my-agent`
    """
    args: list[str] = Field(default_factory=list)
    """The arguments, each one as it is.

    Example: `[--prompt, "{{ task.prompt }}"]`
    """


class PythonAgent(AgentBase):
    """A Python class or function from `dir`. It runs in the sandbox, under the sandbox's `python3`. A class is created
    without arguments and its `run(input, context)` is called; so is a function, which may take the input alone. The
    input is the prompt. The result is a text, or an AgentResult with `output`, `tool_calls` and `token_usage`.
    """

    type: Literal["python"]
    entrypoint: Annotated[str, text_like(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", "module:Class"), PlainText()]
    """The module and, after a colon, the class or function in it.

    Example: `my_agent:Agent`
    """
    dir: Annotated[str, AuthorPath("directory", withheld=False)]
    """The folder that holds the module, relative to the spec. It is given to the agent read-only.

    Example: `agent`
    """


HTTP_DATA = ("turn", "conversation", "task", "record")
"""What a request to an agent that is a service is filled with when it is sent: texts of others, which are written as
the place in the request needs it."""
_OnRequest = Template(later=HTTP_DATA)
_JSON_PATH = r"^\$?(?:\.?[^\[\]\".]+|\[(?:-?\d+|\"[^\"]+\")\])(?:\.[^\[\]\".]+|\[(?:-?\d+|\"[^\"]+\")\])*$|^\$$"
JsonPath = Annotated[str, text_like(_JSON_PATH, "a path in JSON such as choices[0].message.content"), PlainText()]


class HttpAgent(AgentBase):
    """An agent that is a service: it is asked by one HTTP request, and what it answers is its output. It is a container
    of `services`, or runs elsewhere. The request is made from the cell's network, under `network.egress`. Such an agent
    has no `env`, `dir`, `trace`, `output` and `stdin`.
    """

    type: Literal["http"]
    url: Annotated[str, Field(min_length=1), _OnRequest]
    """Where the agent is asked: an `http://` or `https://` URL, `{{ services.NAME.url }}/chat` of a container of
    `services`. Redirects are not followed.

    Example: `https://agents.example.com/chat`
    """
    method: Annotated[str, text_like(r"^[A-Za-z]{1,20}$", "a method such as POST"), PlainText()] = "POST"
    """The method of the request.

    Example: `PUT`
    """
    headers: dict[str, Annotated[Text, _OnRequest]] = Field(default_factory=dict)
    """Headers of the request. A text of the task with a line break can't be one: the cell is an error.

    Example: `{Authorization: "Bearer {{ secrets.ROUTER_KEY }}"}`
    """
    body: TextOrMapping[Annotated[str, _OnRequest], Annotated[dict[str, Any], _OnRequest]] | None = None
    """What is sent: a mapping is sent as JSON, a text as it is. `{{ turn }}` is what is said to the agent,
    `{{ conversation }}` what it gave out at `conversation_path` before. In a mapping they are values. In a text that
    is JSON they are escaped for the inside of a text of JSON.

    Example: `{message: "{{ turn }}", session: "{{ conversation }}"}`
    """
    output_path: JsonPath | None = None
    """Where in the JSON that the agent answers its output is: a text. Of a stream of events, the texts of all events
    that have the path are joined. Without it the output is the whole answer.

    Example: `choices[0].message.content`
    """
    tool_calls_path: JsonPath | None = None
    """Where in the answer the tool calls are: a list of `{name, arguments, result}`, where `arguments` is a mapping, or
    the text of one in JSON. They are the agent's own word.

    Example: `tool_calls`
    """
    conversation_path: JsonPath | None = None
    """Where in the answer the agent names the conversation, for `{{ conversation }}` in what is sent next. Before
    that, `{{ conversation }}` is empty: null where it is a whole value of a mapping.

    Example: `session_id`
    """


class NoneAgent(AgentBase):
    """No agent: the workspace is graded as it is."""

    type: Literal["none"]


PresetType = Literal["claude-code", "codex", "gemini", "mini-swe-agent", "opencode", "aider", "qwen-code"]
PRESET_TYPES: tuple[PresetType, ...] = get_args(PresetType)


class PresetAgent(AgentBase):
    """A coding agent that Keystone knows: its command line, its settings and where its transcript is. It always talks
    to its models through the gateway.
    """

    type: PresetType
    model: Annotated[str, Field(min_length=1)] | None = None
    """The model that it uses. Programs that work with several providers (`mini-swe-agent`, `opencode`, `aider`) need
    one, with the provider in front; `qwen-code` needs one. The others choose their own where there is none.

    Example: `anthropic/claude-sonnet-4-5`
    """
    args: list[str] = Field(default_factory=list)
    """Arguments that are added to the ones that Keystone gives it.

    Example: `[--verbose]`
    """
    binary: Annotated[str, Field(min_length=1)] | None = None
    """Another program in place of the usual one.

    Example: `/opt/codex/bin/codex`
    """
    version: Annotated[str, Field(min_length=1)] | None = None
    """An exact version, or `latest`. With `base` it is installed in the image after `setup.commands`; `latest` gets a
    notice in the report. Without `base` the program that is on this machine must have this version, or the cell is
    an error. Without this field any version will do, and the report says which it was.

    Example: `0.45.0`
    """


LoopType = Literal["anthropic", "paragon", "openai"]
LOOP_TYPES: tuple[LoopType, ...] = get_args(LoopType)
LoopTool = Literal["bash", "read", "write", "edit"]


class LoopAgent(AgentBase):
    """Keystone's own agent, for which nothing has to be installed: it asks the model, does what the model calls for
    with four simple tools in the sandbox, and tells the model what came of it, until the model answers without a call.
    `anthropic` (or `paragon`) asks by the Messages API, `openai` by the chat completions that many servers have. Its
    requests always pass the gateway. It has no `stdin`.
    """

    type: LoopType
    model: Annotated[str, Field(min_length=1)]
    """The model that it asks, by the provider's own name.

    Example: `claude-sonnet-4-5`
    """
    max_turns: Annotated[int, Field(ge=1, le=100_000)] = 50
    """How many answers of the model there may be to one prompt. An agent that has had them all is stopped, as at its
    time limit.

    Example: `20`
    """
    tools: list[LoopTool] = Field(default_factory=lambda: list(get_args(LoopTool)))
    """What the model can call: `bash` runs a command, `read`, `write` and `edit` are for files. `[]` is a model without
    tools, which can only answer.

    Example: `[bash]`
    """

    @property
    def api(self) -> Literal["anthropic", "openai"]:
        """How its model is asked."""
        return "openai" if self.type == "openai" else "anthropic"


WITHOUT_TURNS = ("none", "mini-swe-agent")
"""Types of agents that can't go on with what was said before: `task.turns` is refused."""
AGENT_TYPES = ("command", "cli", "python", "none", "http", *LOOP_TYPES, *PRESET_TYPES)
_SHARED: dict[str, str] = {**dict.fromkeys(PRESET_TYPES, "preset"), **dict.fromkeys(LOOP_TYPES, "loop")}

Agent = Annotated[
    Annotated[CommandAgent, Tag("<command>")]
    | Annotated[CliAgent, Tag("<cli>")]
    | Annotated[PythonAgent, Tag("<python>")]
    | Annotated[HttpAgent, Tag("<http>")]
    | Annotated[NoneAgent, Tag("<none>")]
    | Annotated[LoopAgent, Tag("<loop>")]
    | Annotated[PresetAgent, Tag("<preset>")],
    Discriminator(by_type(AGENT_TYPES, merge=_SHARED)),
]
