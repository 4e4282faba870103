"""What ends or keeps a lease never queues behind what waits for one."""

import pytest

from servers import LONG, wait_until


def work(program, resource, number, lease, **options):
    """Start that many holders of one resource; each works as soon as it is granted, and ends."""
    waiting = [program.start_hold(resource, f"{lease}{n}", **options) for n in range(number)]
    return {f"{lease}{n}": command for n, command in enumerate(waiting)}


def work_in_turn(program, waiting, work=lambda lease: None):
    """Each holder ends before the next one is granted it. Returns in how many grants a lease was waited out."""
    order = []
    while waiting:
        wait_until(lambda: any(command.answered.is_set() for command in waiting.values()))
        for lease in [lease for lease, command in waiting.items() if command.answered.is_set()]:
            waiting.pop(lease).answer()
            work(lease)
            assert program("release", lease=lease) is True
            order.append(lease)
    return order


@pytest.mark.parametrize("source, number", [
    ("conninfo", 5), ("pool", 7), ("conninfo", 64), *(pytest.param(*values, marks=pytest.mark.full) for values in [
        ("pool", 5), ("conninfo", 7), ("pool", 64)])])
def test_a_holder_can_end_while_others_of_its_process_wait(program, server, source, number):
    """A ttl that is longer than the test: if one of them had to wait for the end of a lease, the test would end first."""
    program.open({"kind": source, "conninfo": server.dsn(application_name="waits"), "size": 4})
    waiting = work(program, "door", number, "w", ttl=20 * LONG, wait=20 * LONG)
    assert len(work_in_turn(program, waiting)) == number
    assert not server.is_held("door")


@pytest.mark.parametrize("source", ["conninfo", "pool"])
def test_waiters_hold_up_no_try_release_renewal_or_transaction(program, server, slow, source):
    server.sql("SELECT lease_acquire('taken:' || n, '1 hour', 'other') FROM generate_series(1, 64) AS n")
    program.open({"kind": source, "conninfo": server.dsn(application_name="many"), "size": 4})
    program.hold("mine", ttl=6 * slow)
    waiting = [program.start_hold(f"taken:{n}", wait=20 * LONG, ttl=600) for n in range(1, 65)]
    wait_until(lambda: program("keeper", client="a")["waits"] > 0 and server.waiters("taken:%") > 0)
    program.hold("free", ttl=600, wait=LONG)        # less than the others wait
    assert program("transaction", lease="mine", statements=["SELECT 1"])
    server.wait_for_renewal("mine")
    assert program("release", lease="free") is True and not server.is_held("free")
    assert server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'") <= 20
    # Those that wait beyond the cap are granted it, too.
    server.sql("SELECT lease_release('taken:' || n, 'other') FROM generate_series(1, 64) AS n")
    for command in waiting:
        command.answer()
    assert program("close", client="a", timeout=LONG) == []
    assert server.held("%") == []


def test_a_release_that_meets_a_lock_holds_up_nothing(program, server, slow):
    """A transaction of somebody else's has asserted the lease: the release is tried again until that has ended."""
    import psycopg
    program.open(server.dsn())
    program.hold("other", ttl=6 * slow)
    owner = program.hold("asserted", ttl=20 * LONG)["owner"]
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("SELECT lease_assert('asserted', %s)", [owner])
        release = program.start("release", lease="asserted")
        assert program.try_hold("third", ttl=600)
        assert program("release", lease="third") is True
        server.wait_for_renewal("other")
    try:
        assert release.answer() is True
    except Exception as error:
        assert error.name == "OutcomeUnknown"
    wait_until(lambda: not server.is_held("asserted"))


def test_a_release_without_an_answer_is_unknown_and_goes_on(program, server, proxy):
    program.open(server.dsn(proxy.port))
    program.hold("silent", ttl=20 * LONG)
    proxy.silence()
    assert program.error("release", lease="silent").name == "OutcomeUnknown"
    assert server.is_held("silent")
    proxy.silence(False)
    wait_until(lambda: not server.is_held("silent"))


def test_what_a_request_without_an_answer_was_granted_is_released_after_close(program, server, proxy):
    program.open(server.dsn(proxy.port))
    proxy.on("lease_request", "swallow answer")
    holding = program.start_hold("h", ttl=600, wait=LONG, min_hold=3600)
    wait_until(lambda: server.is_held("h"))
    left = program("close", client="a", timeout=0.5)
    assert holding.error().name == "Closed"
    if left:
        assert left == ["h"]
        wait_until(lambda: not server.is_held("h"))
    assert server.value("SELECT lease_acquire('h', '1 hour', 'other')")


def test_a_release_that_the_end_of_the_lease_overtakes_is_a_loss(program, server, proxy):
    """Less than what a release may take."""
    program.open(server.dsn(proxy.port))
    program.hold("overtaken", ttl=4, stop_before=0.1)
    proxy.silence()
    lost = program.error("end", lease="overtaken")
    assert (lost.name, lost.reason) == ("LeaseLost", "expired")


def test_the_end_of_a_lease_that_is_lost_does_not_wait(program, server, proxy, slow):
    """It is over by itself."""
    program.open(server.dsn(proxy.port))
    program.hold("over", ttl=3 * slow)
    proxy.silence()
    program.event("lost", lease="over", reason="expired")
    end = program.start("end", lease="over")
    assert end.error(limit=4).reason == "expired"
