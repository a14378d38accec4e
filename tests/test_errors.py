"""Whose fault it is when one of the agent's files can't be used."""

from __future__ import annotations

import errno
import os

import pytest

from keystone_action.errors import HarnessError, caused_by_agent, raise_unless_agent


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG])
def test_what_an_agent_can_do_to_its_files_is_the_agents(number: int) -> None:
    error = OSError(number, os.strerror(number))

    assert caused_by_agent(error)
    raise_unless_agent(error, "reading a.txt")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_machine_that_ran_out_of_something_is_not_the_agents(number: int) -> None:
    error = OSError(number, os.strerror(number))

    assert not caused_by_agent(error)
    with pytest.raises(HarnessError, match=f"reading a.txt failed on this machine: {os.strerror(number)}"):
        raise_unless_agent(error, "reading a.txt")
