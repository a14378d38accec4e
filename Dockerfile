# The action's image, on any base with Debian's package manager and Python 3.11 or newer as `python3`. It keeps to what
# Docker's old builder can do: runners of GitHub Enterprise Server build actions with that one.
ARG BASE=python:3.12-slim
# hadolint ignore=DL3006
FROM ${BASE}

# git for workspaces and what changed in them, tini as the init of a step, libfaketime for `determinism.clock`. Some bases have Python without its venv. The
# versions are those of the base's release.
# hadolint ignore=DL3008,SC2046
RUN python3 -c 'import sys; assert sys.version_info >= (3, 11), "Keystone needs Python 3.11 or newer"' \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git libfaketime tini \
        $(python3 -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv) \
    && apt-get clean \
    && rm -r /var/lib/apt/lists/*

# A checkout belongs to a user of the runner's machine: git reads no repository of another user unless it is told to.
# The runner mounts its own folders below /github. It is closed to all but root, so that no agent reaches them.
RUN git config --system --add safe.directory '*' \
    && mkdir -m 700 /github

# Without it, programs on a base with no locale of its own would take texts for ASCII.
ENV LANG=C.UTF-8

# Our packages, at locked versions, in an environment of their own: nothing that an agent installs changes them. pytest
# for the `python3` that agents and checks use; Debian's pip installs into that one only when it is told that nobody
# else manages it. pip compiles all of them to byte code; what it needs itself is not needed after that.
COPY requirements.lock requirements-graders.lock /tmp/
RUN python3 -m venv /opt/keystone \
    && /opt/keystone/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /tmp/requirements.lock \
    && /opt/keystone/bin/pip --python "$(command -v python3)" install --break-system-packages \
        --no-cache-dir --require-hashes --only-binary :all: -r /tmp/requirements-graders.lock \
    && /opt/keystone/bin/pip uninstall --yes pip setuptools

# Our code, in the folder that the .pth file adds to what the environment's Python imports from. Byte code, since each step
# is a new container, which would compile all that it imports.
COPY entrypoint.py post_entrypoint.py /opt/keystone/
COPY keystone_action /opt/keystone/lib/keystone_action
RUN echo /opt/keystone/lib > "$(echo /opt/keystone/lib/python3.*/site-packages)/keystone.pth" \
    && /opt/keystone/bin/python -m compileall -q /opt/keystone/lib/keystone_action /opt/keystone/entrypoint.py

# Signals wait until the program's first line takes them over: while an interpreter starts, they would be lost.
# Isolated (-I), because a workflow's PYTHONHOME and PYTHONPATH are not meant for this Python.
ENTRYPOINT ["/usr/bin/env", "--block-signal=INT", "--block-signal=TERM", \
    "/opt/keystone/bin/python", "-I", "/opt/keystone/entrypoint.py"]
