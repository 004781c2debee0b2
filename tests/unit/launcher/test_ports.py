"""Addresses are chosen or checked before anything starts."""

import socket

import pytest

from services.common.errors import ConfigError
from services.launcher.ports import choose_addresses, free_port, split_address


def test_every_port_0_becomes_a_port_of_its_own():
    chosen = choose_addresses({f"s{index}.address": "127.0.0.1:0" for index in range(20)})
    ports = {split_address(address, key="x")[1] for address in chosen.values()}
    assert len(ports) == 20
    assert 0 not in ports


def test_a_given_port_is_kept():
    port = free_port()
    assert choose_addresses({"queue.address": f"127.0.0.1:{port}"}) == {"queue.address": f"127.0.0.1:{port}"}


def test_a_port_in_use_is_refused_with_key_and_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"reward.address is {address}.*in use"):
            choose_addresses({"reward.address": address})


def test_two_services_cannot_share_a_port():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=r"queue.address and reward.address are both"):
        choose_addresses({"queue.address": address, "reward.address": address})


@pytest.mark.parametrize("address", ["", "7000", "host", "host:", ":7", "host:x", "host:70000"])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match="write it as host:port"):
        split_address(address, key="queue.address")


def test_an_unknown_host_is_refused():
    with pytest.raises(ConfigError, match="cannot be resolved"):
        choose_addresses({"queue.address": "no-such-host.invalid:0"})


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match="cannot be listened on"):
        choose_addresses({"queue.address": "192.0.2.1:0"})
