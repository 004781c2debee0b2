from __future__ import annotations

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from services.common.rpc.channel import _CHANNEL_OPTIONS, message_size_options
from services.common.rpc.server import _SERVER_OPTIONS

LIBRARY = Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("name", sorted({name for name, _ in [*_CHANNEL_OPTIONS, *_SERVER_OPTIONS]}))
def test_an_option_is_one_that_the_library_knows(name):
    # gRPC ignores what it does not know, so that a misspelt option looks as if it were set.
    assert name.encode() in LIBRARY


def test_the_bound_of_a_message_is_one_that_the_library_knows():
    assert all(name.encode() in LIBRARY for name, _ in message_size_options(1))
