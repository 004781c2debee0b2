from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest
from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool

from services.common.errors import OverloadedError
from services.queue.rounds import Rounds
from tests.redis_server import free_port, running_server


@pytest.fixture
async def make_rounds():
    pools, made = [], []

    def make(url, *, round_seconds=5.0):
        pools.append(BlockingConnectionPool.from_url(url, max_connections=8, timeout=5.0))
        made.append(Rounds(pools[-1], round_seconds=round_seconds))
        return made[-1]

    yield make
    for rounds in made:
        await rounds.close()
    for pool in pools:
        await pool.disconnect()


@pytest.fixture
def rounds(make_rounds, redis_url):
    return make_rounds(redis_url)


async def num_reads(rounds):
    """How often the server has read from a client: once per round, as long as rounds are small."""
    [text] = await rounds.ask([("INFO", "stats")])
    [line] = [line for line in text.decode().splitlines() if line.startswith("total_reads_processed:")]
    return int(line.partition(":")[2])


async def test_calls_that_come_together_go_together_and_each_gets_its_own_answers(rounds):
    before = await num_reads(rounds)
    calls = [[("SET", f"many:{at}", at), ("GET", f"many:{at}")] for at in range(50)]
    answers = await asyncio.gather(*(rounds.ask(call) for call in calls))
    assert answers == [[b"OK", b"%d" % at] for at in range(50)]
    assert await num_reads(rounds) - before < 10


async def test_more_calls_than_a_round_holds_are_all_answered_in_order(rounds):
    calls = [rounds.ask([("RPUSH", "order", at)]) for at in range(500)]
    assert await asyncio.gather(*calls) == [[at + 1] for at in range(500)]
    [stored] = await rounds.ask([("LRANGE", "order", 0, -1)])
    assert [int(value) for value in stored] == list(range(500))


async def test_many_bytes_are_spread_over_rounds(rounds):
    payload = bytes(3 * 1024 * 1024)
    calls = [rounds.ask([("SET", f"large:{at}", payload)], num_bytes=len(payload)) for at in range(6)]
    assert await asyncio.gather(*calls) == [[b"OK"]] * 6
    assert await rounds.ask([("STRLEN", "large:5")]) == [len(payload)]


async def test_a_failing_call_leaves_its_neighbours_alone(rounds):
    good, refused, unwritable, last = await asyncio.gather(
        rounds.ask([("SET", "word", "x"), ("GET", "word")]),
        rounds.ask([("INCR", "word"), ("GET", "word")]),
        rounds.ask([("SET", "word", object())]),
        rounds.ask([("GET", "word")]),
        return_exceptions=True,
    )
    assert good == [b"OK", b"x"]
    assert isinstance(refused[0], redis_errors.ResponseError)
    assert refused[1] == b"x"
    assert isinstance(unwritable, redis_errors.DataError)
    assert last == [b"x"]


async def test_a_caller_that_leaves_takes_no_other_with_it(rounds):
    moment = random.Random(2)

    async def ask_forever(name):
        at = 0
        while True:
            at += 1
            assert await rounds.ask([("SET", name, at), ("GET", name)]) == [b"OK", b"%d" % at]

    steady = asyncio.ensure_future(ask_forever("steady"))
    for number in range(100):
        fleeting = asyncio.ensure_future(ask_forever(f"fleeting:{number}"))
        await asyncio.sleep(moment.uniform(0.0, 0.003))
        fleeting.cancel()
        await asyncio.wait([fleeting], timeout=1.0)
        assert fleeting.cancelled()
        assert not steady.done()
    steady.cancel()
    await asyncio.wait([steady])


async def test_a_call_whose_caller_left_before_the_round_is_not_sent(rounds):
    first = asyncio.ensure_future(rounds.ask([("SET", "left", "first")]))
    second = asyncio.ensure_future(rounds.ask([("SET", "left", "second")]))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == [b"OK"]
    assert await rounds.ask([("GET", "left")]) == [b"first"]


async def test_a_server_that_dies_in_the_middle_fails_every_caller_and_is_found_again(make_rounds, tmp_path):
    port = free_port()
    rounds = make_rounds(f"redis://127.0.0.1:{port}/0")
    with running_server(tmp_path, port=port):
        [text] = await rounds.ask([("INFO", "server")])
        [line] = [line for line in text.decode().splitlines() if line.startswith("process_id:")]
        pid = int(line.partition(":")[2])
        os.kill(pid, signal.SIGSTOP)
        asked = [asyncio.ensure_future(rounds.ask([("SET", "a", at)])) for at in range(20)]
        await asyncio.sleep(0.1)
        late = [asyncio.ensure_future(rounds.ask([("SET", "b", at)])) for at in range(20)]
        os.kill(pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*asked, *late, return_exceptions=True), 5.0)
        assert {type(result) for result in results} == {redis_errors.ConnectionError}
    with running_server(tmp_path, port=port):
        assert await rounds.ask([("GET", "a")]) == [None]


async def test_a_kept_connection_that_was_closed_is_replaced(rounds):
    assert await rounds.ask([("GET", "nothing")]) == [None]
    calls = [rounds.ask([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")]), rounds.ask([("SET", "again", "1")])]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers[1] in ([b"OK"], [True])
    assert await rounds.ask([("GET", "again")]) == [b"1"]


async def test_a_server_that_was_restarted_between_two_rounds_is_found_at_once(make_rounds, tmp_path):
    port = free_port()
    rounds = make_rounds(f"redis://127.0.0.1:{port}/0")
    for _ in range(3):
        with running_server(tmp_path, port=port):
            assert await asyncio.gather(*(rounds.ask([("PING",)]) for _ in range(3))) == [[b"PONG"]] * 3


async def test_a_server_that_hangs_ends_the_round_in_time(make_rounds, tmp_path):
    with running_server(tmp_path) as url:
        rounds = make_rounds(url, round_seconds=0.3)
        assert await rounds.ask([("SET", "slow", "1")]) == [b"OK"]
        asked = [rounds.ask([("BLPOP", "never", "1")]), rounds.ask([("GET", "slow")])]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [TimeoutError, TimeoutError]
        # Not the answers that the round before left unread.
        assert await rounds.ask([("GET", "slow")]) == [b"1"]


async def test_too_many_waiting_calls_are_refused(rounds):
    calls = [asyncio.ensure_future(rounds.ask([("PING",)])) for _ in range(5000)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, OverloadedError) for result in results) == 5000 - 4096
    assert results[0] == [b"PONG"]


async def test_closing_fails_those_who_wait(rounds):
    asked = asyncio.ensure_future(rounds.ask([("BLPOP", "never", "0")]))
    await asyncio.sleep(0.05)
    late = asyncio.ensure_future(rounds.ask([("PING",)]))
    await asyncio.sleep(0)
    await rounds.close()
    for task in (asked, late):
        with pytest.raises(redis_errors.ConnectionError, match="closed"):
            await task
