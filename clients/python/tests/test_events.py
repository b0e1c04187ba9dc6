"""Events, across lost connections."""

from __future__ import annotations

from contextlib import closing

from conftest import Proxy

from sandkeep import Client, Event, Sandbox


def first(client: Client, sandbox: Sandbox, kind: str) -> Event:
    """The first event of a kind, which may be about to be recorded."""
    with closing(client.events(after=0, sandbox=sandbox.id, kinds=kind, follow=True)) as events:
        return next(events)


def test_events_are_read_selected_and_continued(client: Client, sandbox: Sandbox) -> None:
    ran = sandbox.run("exit 3")
    ended = first(client, sandbox, "exec.ended")
    assert ended.data["exec"] == ran.exec_id and ended.at is not None
    found = list(client.events(sandbox=sandbox.id, kinds=["sandbox.*", "exec.ended"]))
    assert [event.kind for event in found] == ["sandbox.created", "exec.ended"] and found[1] == ended
    rest = list(client.events(sandbox=sandbox.id, after=found[0].seq))
    assert ended in rest and all(event.seq > found[0].seq for event in rest)


def test_no_event_is_missing_or_repeated_however_often_the_connection_is_cut(
    client: Client, sandbox: Sandbox, proxy: Proxy
) -> None:
    begin = first(client, sandbox, "sandbox.created").seq
    for _ in range(10):
        sandbox.run("true", check=True)
    sandbox.snapshot("last")
    proxy.cut_after([500, 1, 900, 700, 2000, 300])
    with Client(proxy.url) as far, closing(far.events(after=begin, sandbox=sandbox.id, follow=True)) as events:
        seen = [next(events)]
        while seen[-1].kind != "snapshot.created":
            seen.append(next(events))
    assert proxy.cuts > 3, "the proxy cut nothing"
    kept = list(client.events(after=begin, sandbox=sandbox.id))
    assert seen == [event for event in kept if event.seq <= seen[-1].seq]


def test_events_arrive_as_they_happen(client: Client, sandbox: Sandbox) -> None:
    last = first(client, sandbox, "sandbox.created").seq
    with closing(client.events(after=last, sandbox=sandbox.id, kinds="snapshot.*", follow=True)) as events:
        sandbox.snapshot("one")
        assert next(events).data["name"] == "one"
        sandbox.snapshot("two")
        assert next(events).data["name"] == "two"
