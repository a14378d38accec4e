"""Specs that need a container engine, on a machine where none answers."""

from __future__ import annotations

import pytest
from support.command_line import ROOT, keystone


@pytest.mark.parametrize("name", ["postgres", "postgres-broken", "mysql", "mysql-broken"])
def test_reconcile_in_containers_is_valid_without_an_engine_and_refused_with_a_sentence(tmp_path, name):
    spec = ROOT / "examples" / "reconcile" / f"{name}.keystone.yaml"
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    valid = keystone("validate", spec, directory=tmp_path, environ=nowhere)
    assert valid.code == 0, valid.err
    refused = keystone("run", spec, "--output", tmp_path / "out", directory=tmp_path, environ=nowhere)
    assert refused.code == 2, refused.out + refused.err
    assert "base: python:3.12-slim needs a Docker engine" in refused.err
    assert not (tmp_path / "out" / "cells").exists()
