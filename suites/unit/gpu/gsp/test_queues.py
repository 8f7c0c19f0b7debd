"""The message queues between the driver and the GSP."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.queues import (
    ELEMENT_HEADER,
    MOST_BODY,
    MOST_PAGES,
    MOST_WAITING,
    PAGE,
    QUEUE_BYTES,
    SLOTS,
    Pages,
    QueueArguments,
    QueueError,
    Queues,
    checksum,
)
from suites.unit.gpu.gsp.driverside import NOWHERE, PAGES, STATUSES, DriverSide, Ram, message


def test_message_that_spans_several_pages_is_read_completely() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)
    body = message(76, bytes(range(256)) * 40)

    driver.put(body)

    assert next(queues.take())[: len(body)] == body
    assert list(queues.take()) == []


def test_messages_are_read_across_the_end_of_the_queue() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)
    # A message has two units and the number of slots is odd, so some messages wrap around.
    for number in range(SLOTS):
        body = message(76, bytes([number]) * PAGE)
        driver.put(body)
        driver.put(body)

        assert [taken[: len(body)] for taken in queues.take()] == [body, body], number


def test_device_reports_its_read_position_in_the_header_of_its_own_queue() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)

    driver.put(message(1, bytes(PAGE)))
    next(queues.take())

    assert driver.ram.read(driver.place(STATUSES + 32), 4) == struct.pack("<I", 2)


def test_sent_messages_have_sequence_numbers_and_a_valid_checksum() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)

    for length in (0, 1, 4047, 4048, 4049, MOST_BODY):
        queues.send(b"\x5a" * length)

    for number, length in enumerate((0, 1, 4047, 4048, 4049, MOST_BODY)):
        element = driver.take()
        assert element is not None
        assert len(element) == -(-(ELEMENT_HEADER + length) // PAGE) * PAGE
        assert checksum(element) == 0
        assert struct.unpack_from("<I", element, 36) == (number,)
        assert element[ELEMENT_HEADER : ELEMENT_HEADER + length] == b"\x5a" * length


def test_message_waits_while_the_queue_is_full() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)
    for number in range(SLOTS + 1):
        queues.send(bytes([number]))

    seen = [driver.take() for _ in range(SLOTS - 1)]
    assert driver.take() is None
    queues.flush()
    seen += [driver.take(), driver.take()]

    assert [element and element[ELEMENT_HEADER] for element in seen] == list(range(SLOTS + 1))


def test_sending_fails_if_the_driver_does_not_read_its_queue() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)

    for _ in range(MOST_WAITING + SLOTS - 1):
        queues.send(b"")

    with pytest.raises(QueueError, match="does not read its messages"):
        queues.send(b"")


def test_message_with_a_wrong_number_of_units_is_refused() -> None:
    for units in (0, 2, 17, 0xFFFFFFFF):
        driver = DriverSide()
        queues = Queues(driver.ram, driver.arguments)
        driver.put(message(1, b""), units=units)

        with pytest.raises(QueueError, match="units"):
            next(queues.take())


def test_pointer_beyond_the_end_of_the_queue_is_refused() -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)
    driver.point_to(SLOTS)

    with pytest.raises(QueueError, match="pointer"):
        next(queues.take())


def test_queues_outside_of_their_pages_are_refused() -> None:
    last = MOST_PAGES * PAGE - QUEUE_BYTES
    data = struct.pack("<QI4xQQ", 0, MOST_PAGES, 0x1000, last)
    assert QueueArguments.parse(data).statuses == last

    for pages, commands, statuses in (
        (0, 0x1000, 0x41000),
        (MOST_PAGES + 1, 0x1000, 0x41000),
        (PAGES, 0x1001, 0x41000),
        (PAGES, 0x1000, 0x42000),
        (PAGES, 1 << 60, 0x41000),
    ):
        with pytest.raises(QueueError):
            QueueArguments.parse(struct.pack("<QI4xQQ", 0, pages, commands, statuses))


def test_list_of_pages_longer_than_a_page_continues_in_the_next_listed_page() -> None:
    ram = Ram()
    pages = [0x100000 + PAGE * (7 * index % 601) for index in range(600)]
    for first in (0, 512):
        part = pages[first : first + 512]
        ram.write(pages[first // 512], struct.pack(f"<{len(part)}Q", *part))
    ram.write(pages[599] + 5, b"last")

    found = Pages.by_table(ram, pages[0], 600)

    assert found.read(599 * PAGE + 5, 4) == b"last"


def test_page_outside_of_memory_is_refused() -> None:
    driver = DriverSide()
    driver.pages[STATUSES // PAGE] = NOWHERE
    driver.ram.write(driver.pages[0], struct.pack(f"<{PAGES}Q", *driver.pages))

    with pytest.raises(GuestMemoryError):
        Queues(driver.ram, driver.arguments)


@given(st.binary(max_size=2 * PAGE))
def test_checksum_is_the_exclusive_or_of_all_words(data: bytes) -> None:
    padded = data.ljust(-(-len(data) // 8) * 8, b"\0")
    expected = 0
    for (word,) in struct.iter_unpack("<I", padded):
        expected ^= word

    assert checksum(padded) == expected


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 0xFFFFFFFF))
def test_queue_that_a_hostile_guest_filled_is_read_or_refused(
    messages: list[bytes], pointer: int
) -> None:
    driver = DriverSide()
    queues = Queues(driver.ram, driver.arguments)
    for body in messages:
        driver.put(body)
    driver.point_to(pointer)

    try:
        taken = list(queues.take())
    except QueueError:
        return
    assert len(taken) < SLOTS
