"""The GPU's system processor, which answers the calls that the driver puts into the queues."""

from __future__ import annotations

import logging
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.errors import BadInputError
from harness.gpu.gsp.address_space import AddressSpace, UnmappedError
from harness.gpu.gsp.answers import answer
from harness.gpu.gsp.call import INVALID_ARGUMENT, NOT_SUPPORTED, OK, Call, gpu_engines
from harness.gpu.gsp.channels import Channel, ChannelError, ChannelPlace
from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.layouts import MissingNameError, read_layouts
from harness.gpu.gsp.page_tables import Space
from harness.gpu.gsp.queues import QueueArguments, QueueError, Queues
from harness.gpu.gsp.records import Record
from harness.gpu.gsp.rpc import ALLOC, CONTROL, UNANSWERED, Assembler, Function, Rpc, RpcError
from harness.gpu.gsp.static_info import fill_static_info
from harness.gpu.trace import IncidentKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gpu.gsp.address_space import Memories
    from harness.gpu.gsp.state import GpuState

_LOG = logging.getLogger(__name__)

#: Where SET_GUEST_SYSTEM_INFO contains the driver's version, in all known releases.
_VERSION: Final = slice(24, 24 + 256)
_A_VERSION: Final = re.compile(rb"\d+(?:\.\d+)+")
#: An entry of 32 bytes in the list of arguments for the GSP's operating system.
_ARGUMENT: Final = struct.Struct("<QQQ8x")
_MOST_ARGUMENTS: Final = 16
_MESSAGE_ARGUMENTS: Final = int.from_bytes(b"RMARGS", "big")

MOST_CHANNELS: Final = 2048
_CHANNEL_CLASS: Final = 0x6F
_CHANNEL_PARAMETERS: Final = "NV_CHANNEL_ALLOC_PARAMS"
_USERD_IN_FRAME_BUFFER: Final = 2
#: The class of an object that represents a MIG GPU instance.
_GPU_INSTANCE_CLASS: Final = 0xC637
_GPU_INSTANCE_PARAMETERS: Final = "NVC637_ALLOCATION_PARAMETERS"
_XID_TEXT_BYTES: Final = 256
#: The driver's texts for common Xids, as quoted in NVIDIA's catalogue of Xids.
_XID_TEXTS: Final = {
    13: "Graphics Exception: ESR 0x404648=0x80000002",
    31: (
        "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x0_00000000. Fault is of type FAULT_PDE "
        "ACCESS_TYPE_VIRT_READ"
    ),
    43: "Ch 00000008",
    48: "DBE (double bit error) ECC Error",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error while attempting to remap row",
    74: "NVLink: fatal error detected on link 0(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
}
_ANY_TEXT: Final = "An error of a test"
#: The maximum number of different unknown commands that are counted.
_MOST_UNKNOWN: Final = 1024


class Processor:
    """The GSP from its boot until the driver is unloaded; `notify` interrupts the driver.

    Methods raise QueueError, RpcError or GuestMemoryError if the guest violates the protocol. After
    such an error, no more messages are possible.
    """

    def __init__(
        self, state: GpuState, memories: Memories, arguments_at: int, notify: Callable[[], None]
    ) -> None:
        self.is_hung = False
        self.is_ready = False
        """Whether the driver has queried the GPU's facts, and so accepts error reports."""
        self.is_unloaded = False
        self.bar2: tuple[int, int] | None = None
        """The entry in BAR 2's root directory, and the shift of that directory."""
        self._state = state
        self._memories = memories
        self._notify = notify
        self._channels: dict[tuple[int, int], Channel] = {}
        self._assembler = Assembler()
        state.roots.clear()
        state.subscriptions.clear()
        state.layouts = None
        self._queues = Queues(memories.guest, _queue_arguments(memories, arguments_at))

    def begin(self) -> None:
        """Answer the calls that were queued before the boot, and report that the GSP runs."""
        self.take_calls()
        self._send(Rpc(function=Function.GSP_INIT_DONE, body=bytes(4)))

    def take_calls(self) -> None:
        """Answer all calls that are now in the queue; the driver rings the doorbell for later calls."""
        self._queues.flush()
        for units in self._queues.take() if not self.is_hung else ():
            rpc = self._assembler.feed(units)
            if rpc is not None:
                self._answer(rpc)
            if self.is_hung or self.is_unloaded:
                return

    def run_channels(self) -> bool:
        """Do new work of the channels; return whether work is left."""
        left = [self._run(*each) for each in list(self._channels.items())]
        return any(left)

    def _run(self, handles: tuple[int, int], channel: Channel) -> bool:
        """Run one channel; stop the channel if its work can't be done."""
        try:
            return channel.run()
        except (ChannelError, UnmappedError, GuestMemoryError) as error:
            _LOG.info("Channel %#x of the guest's driver was stopped: %s", handles[1], error)
            self._channels.pop(handles, None)
            return False

    def raise_xid(self, number: int, text: str) -> None:
        """Report an error to the driver, which logs it as an Xid.

        The driver logs only errors that have a text.
        """
        words = (
            (text or _XID_TEXTS.get(number, _ANY_TEXT))
            .encode("ascii", "replace")[: _XID_TEXT_BYTES - 1]
            .ljust(_XID_TEXT_BYTES, b"\0")
        )
        # The error names neither a runlist nor a channel.
        body = struct.pack("<III", number, 0xFFFFFFFF, 0xFFFFFFFF) + words + bytes(64)
        self._send(Rpc(function=Function.OS_ERROR_LOG, body=body))
        self._queues.settle()
        self._notify()

    def _send(self, rpc: Rpc) -> None:
        for part in rpc.parts():
            self._queues.send(part)

    def _answer(self, rpc: Rpc) -> None:
        body = bytearray(rpc.body)
        try:
            result = self._carry_out(rpc.function, body)
        except MissingNameError as error:
            self._refuse_driver(
                f"The harness's data of this release of NVIDIA's driver lacks {error}, which the emulated "
                "GPU needs; generate the data again with `harness gpu release SOURCE`."
            )
            result = NOT_SUPPORTED
        if rpc.function not in UNANSWERED:
            self._send(replace(rpc, body=bytes(body), result=result))

    def _carry_out(self, function: int, body: bytearray) -> int:
        """Carry out a call, write its answer into `body`, and return its result."""
        result = OK
        match function:
            case Function.GSP_RM_CONTROL:
                self._control(body)
            case Function.GSP_RM_ALLOC:
                result = self._alloc(body)
            case Function.FREE:
                if len(body) >= 12:
                    client, _, handle = struct.unpack_from("<III", body)
                    self._channels.pop((client, handle), None)
                    self._state.subscriptions.pop((client, handle), None)
            case Function.SET_GUEST_SYSTEM_INFO:
                result = self._learn_release(bytes(body))
            case Function.GET_GSP_STATIC_INFO:
                result = self._static_info(body)
            case Function.UPDATE_BAR_PDE:
                self._update_bar(body)
            case Function.UNLOADING_GUEST_DRIVER:
                self.is_unloaded = True
            case _:
                pass
        return result

    def _learn_release(self, body: bytes) -> int:
        found = _A_VERSION.match(body[_VERSION].split(b"\0")[0])
        release = found[0].decode() if found else "of an unknown version"
        try:
            self._state.layouts = read_layouts(release, *self._state.model_folders)
        except BadInputError as error:
            self._refuse_driver(
                f"NVIDIA's driver {release} opened the emulated GPU, but the harness has no data of "
                f"that release. {error}"
            )
            return NOT_SUPPORTED
        return OK

    def _refuse_driver(self, refusal: str) -> None:
        _LOG.warning("%s", refusal)
        self._state.note(IncidentKind.DRIVER_REFUSED, refusal)

    def _static_info(self, body: bytearray) -> int:
        layouts = self._state.layouts
        if layouts is None:
            return NOT_SUPPORTED
        self.is_ready = True
        fill_static_info(body, layouts, self._state, gpu_engines(self._state, layouts))
        return OK

    def _control(self, body: bytearray) -> None:
        client, handle, command, _, size, _ = CONTROL.unpack_from(body)
        layouts = self._state.layouts
        status = NOT_SUPPORTED
        if layouts is not None:
            parameters = body[CONTROL.size : CONTROL.size + size]
            call = Call(
                state=self._state,
                layouts=layouts,
                memories=self._memories,
                command=command,
                client=client,
                handle=handle,
                parameters=parameters,
            )
            try:
                status, is_known = answer(call)
            except GuestMemoryError as error:
                _LOG.info("Command %#x of the guest's driver: %s", command, error)
                status, is_known = INVALID_ARGUMENT, True
            body[CONTROL.size : CONTROL.size + size] = parameters
            unknown = self._state.unknown_commands
            if not is_known and (command in unknown or len(unknown) < _MOST_UNKNOWN):
                unknown[command] += 1
                if unknown[command] == 1:
                    self._state.note(IncidentKind.COMMAND_UNKNOWN, f"{command:#x}")
        struct.pack_into("<I", body, 12, status)

    def _alloc(self, body: bytearray) -> int:
        if len(body) < ALLOC.size:
            raise RpcError(f"An allocation has {len(body)} bytes, but needs {ALLOC.size}.")
        client, _, handle, kind, *_ = ALLOC.unpack_from(body)
        status = OK
        if kind & 0xFF == _CHANNEL_CLASS:
            status = self._add_channel(client, handle, body[ALLOC.size :])
        elif kind == _GPU_INSTANCE_CLASS:
            self._subscribe(client, handle, body[ALLOC.size :])
        struct.pack_into("<I", body, 16, status)
        return status

    def _subscribe(self, client: int, handle: int, parameters: bytearray) -> None:
        layouts = self._state.layouts
        if layouts is not None:
            record = Record(layouts, _GPU_INSTANCE_PARAMETERS, parameters)
            self._state.subscribe(client, handle, record.get("swizzId"))

    def _add_channel(self, client: int, handle: int, parameters: bytearray) -> int:
        layouts = self._state.layouts
        if layouts is None or len(self._channels) >= MOST_CHANNELS:
            return INVALID_ARGUMENT
        if len(parameters) < layouts.struct(_CHANNEL_PARAMETERS).size:
            return OK
        record = Record(layouts, _CHANNEL_PARAMETERS, parameters)
        root = self._state.find_root(client, record.get("hVASpace"))
        if root is None:
            return OK
        is_here = record.get("userdMem.addressSpace") == _USERD_IN_FRAME_BUFFER
        chip = self._state.chip
        place = ChannelPlace(
            entries_at=record.get("gpFifoOffset"),
            entries=record.get("gpFifoEntries"),
            state_in=Space.FRAME_BUFFER if is_here else Space.GUEST,
            state_at=record.get("userdMem.base"),
        )
        space = AddressSpace(self._memories, chip.page_tables, root)
        self._channels[client, handle] = Channel(
            place, space, self._memories, can_scrub=chip.can_scrub
        )
        return OK

    def _update_bar(self, body: bytearray) -> None:
        if len(body) >= 24:
            bar, entry, shift = struct.unpack_from("<I4xQQ", body)
            if bar == 1:
                self.bar2 = entry, shift


def _queue_arguments(memories: Memories, at: int) -> QueueArguments:
    """Return the arguments of the message queues from the list of arguments at address `at`."""
    for index in range(_MOST_ARGUMENTS):
        entry = memories.guest.read(at + _ARGUMENT.size * index, _ARGUMENT.size)
        name, address, _ = _ARGUMENT.unpack(entry)
        if name == _MESSAGE_ARGUMENTS:
            return QueueArguments.parse(memories.guest.read(address, 0x50))
        if not name:
            break
    raise QueueError("The arguments of the GSP have no entry for its message queues.")
