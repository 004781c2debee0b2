"""Addresses are chosen or checked before anything starts."""

import socket

import pytest

from services.common.errors import ConfigError
from services.launcher.ports import choose_addresses, free_port, service_ports, split_address


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


def test_chosen_ports_lie_below_those_that_clients_get(tmp_path):
    file = tmp_path / "ip_local_port_range"
    file.write_text("32768\t60999\n")
    assert service_ports(file) == range(10_000, 32_768)
    ports = service_ports()
    if ports:
        assert all(free_port() in ports for _ in range(20))
        (address,) = choose_addresses({"queue.address": "127.0.0.1:0"}).values()
        assert split_address(address, key="x")[1] in ports


@pytest.mark.parametrize("text", ["1024\t65535\n", "10500\t65535\n", "", "all"])
def test_where_clients_get_every_port_any_free_one_is_chosen(tmp_path, text):
    file = tmp_path / "ip_local_port_range"
    file.write_text(text)
    assert not service_ports(file)
    assert not service_ports(tmp_path / "nothing")
