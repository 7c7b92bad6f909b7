"""Messages from a process to the one that forked it."""

import os
import threading

import pytest

from ekiden.codegen.children import Channel


def test_messages_arrive_whole_and_in_their_order() -> None:
    receiver, sender = Channel.pair()
    sent = [("kernel", "k", bytes(1 << 20)), ("done", 7), ValueError("no")]

    def send() -> None:
        for each in sent:
            sender.send(each)
        sender.close()

    thread = threading.Thread(target=send)
    thread.start()  # the first is larger than a pipe holds
    found = [receiver.receive() for _ in sent]
    thread.join()
    assert found[:2] == sent[:2] and repr(found[2]) == repr(sent[2])
    with pytest.raises(EOFError):
        receiver.receive()


def test_a_message_cut_short_is_the_end() -> None:
    read, write = os.pipe()
    receiver = Channel(read)
    os.write(write, (1000).to_bytes(8, "little") + b"part")
    os.close(write)
    with pytest.raises(EOFError):
        receiver.receive()


def test_what_cannot_be_pickled_sends_nothing() -> None:
    receiver, sender = Channel.pair()
    with pytest.raises((AttributeError, TypeError)):
        sender.send(threading.Lock())
    sender.send("next")
    assert receiver.receive() == "next"


def test_nobody_receives() -> None:
    receiver, sender = Channel.pair()
    receiver.close()
    with pytest.raises(OSError):
        sender.send("lost")
