"""Files that a user of the group `gpu-lab` can forge in the GPU pool's folder.

Each forgery is a script of a few lines. The script runs as an ordinary user and uses the names of
`PRELUDE`. Then root runs `harness gpu host restore` and `harness gpu host ls`. `Kept` lists what these
commands must not change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class Place:
    """The names that forgeries use: the pool's folder, PCI addresses, a driver and other facts.

    `gpu` and `admins` are GPUs on vfio-pci; the group may write the sysfs files of `gpu`, but not
    of `admins`. `busy` is a GPU on `driver` that no run has leased. `foreign` is a function that is
    not a GPU. `secret` is a file of root that users can't read.
    """

    pool: str
    gpu: str
    admins: str
    busy: str
    foreign: str
    driver: str
    secret: str
    boot: str

    def script(self, forgery: Forgery) -> str:
        """Return the complete script of a forgery, with its names."""
        facts = "".join(f"{name} = {value!r}\n" for name, value in asdict(self).items())
        return f"{facts}{PRELUDE}{forgery.script}"


class Kept(Enum):
    """The facts that must be the same before and after root's commands."""

    ROOTS_FILE = "root's file: its content, owner and mode"
    DRIVERS = "the driver and the driver_override of every function of the PCI bus"
    QUARANTINES = "which GPUs are quarantined"
    FILES = "the files in the pool's folder that the harness did not make"


@dataclass(frozen=True, kw_only=True)
class Forgery:
    """A script that a user runs; the output of root's commands must contain `says`."""

    name: str
    script: str
    says: str
    unchanged: frozenset[Kept] = frozenset(Kept)


PRELUDE = '''
import fcntl, json, os, stat, tempfile
from pathlib import Path
pool = Path(pool)
open_files = []
def good(driver=None):
    return {"driver": driver, "override": None}
def record(functions, address=gpu, **more):
    text = json.dumps({"boot_id": boot, "functions": functions, **more})
    put(f"drivers-{address}.json", text)
def put(name, content):
    path = pool / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o640)
    return path
def hold(name, content):
    path = put(name, content)
    file = path.open("rb")
    fcntl.flock(file, fcntl.LOCK_EX)
    open_files.append(file)
def lease(**more):
    return json.dumps({"who": "x", "process": 1, "user": "root", "since": "now", "wanted": [[gpu]],
                       "taken": [gpu], **more})
def evil():
    """A folder like a function's in sysfs, whose driver_override is a link to a file of root's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    for name, text in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "power_state": "D0"}.items():
        (folder / name).write_text(text + "\\n")
    (folder / "config").write_bytes(bytes(64))
    (folder / "driver_override").symlink_to(secret)
    return folder
'''


def _of_record(name: str, script: str, says: str = "drivers-") -> Forgery:
    return Forgery(name=name, script=script, says=says)


FORGERIES = (
    # The names of functions become paths of sysfs.
    Forgery(
        name="a record names a path in addition to the GPU",
        script='record({gpu: good(), "../../../../../../.." + str(evil()): {"driver": None, "override": "alice"}})',
        says="but a PCI address was expected",
    ),
    Forgery(
        name="a record names only a path, and its override is a line for sudoers",
        script="""
path = "../../../../../../.." + str(evil())
record({path: {"driver": None, "override": "alice ALL=(ALL) NOPASSWD: ALL"}})
""",
        says="but a PCI address was expected",
    ),
    Forgery(
        name="a record names an absolute path",
        script='record({str(evil()): {"driver": None, "override": "alice"}})',
        says="but a PCI address was expected",
    ),
    Forgery(
        name="a record names a function of another device",
        script="record({gpu: good(driver), foreign: good()})",
        says="is not in the IOMMU group of",
    ),
    Forgery(
        name="a record is named after a function that is not a GPU",
        script="record({foreign: good()}, foreign)",
        says="is not a GPU",
    ),
    Forgery(
        name="a record is named after a function that does not exist",
        script='record({"0000:7f:1f.7": good()}, "0000:7f:1f.7")',
        says="is not on the PCI bus",
    ),
    Forgery(
        name="a record with the name of one GPU names another GPU",
        script="record({admins: good(driver)}, gpu)",
        says="it does not list",
    ),
    Forgery(
        name="a record names a GPU that no run has leased",
        script="record({busy: good()}, busy)",
        says="is not bound to vfio-pci, so no run has leased this function",
    ),
    Forgery(
        name="a record names a GPU that its writer may not bind",
        script="record({admins: good(driver)}, admins)",
        says="that user may not write",
    ),
    # The names of drivers are written into sysfs, and are paths there, too.
    Forgery(
        name="a record's driver is a path",
        script='record({gpu: good("../../../devices")})',
        says="'../../../devices', but the name of a driver was expected",
    ),
    Forgery(
        name="a record's driver_override has a second line",
        script='record({gpu: {"driver": None, "override": "vfio-pci\\nalice ALL=(ALL) NOPASSWD: ALL"}})',
        says="but the name of a driver was expected",
    ),
    Forgery(
        name="a record's driver is empty",
        script='record({gpu: good("")})',
        says="but the name of a driver was expected",
    ),
    Forgery(
        name="a record's driver is unknown to the kernel",
        script='record({gpu: good("no_such_driver")})',
        says="the kernel has no driver 'no_such_driver'",
    ),
    Forgery(
        name="a record's driver differs from the driver that the kernel chooses",
        script='record({gpu: good("pcieport")})',
        says="can't be bound to the driver 'pcieport'",
    ),
    Forgery(
        name="a record's driver_override is another driver",
        script='record({gpu: {"driver": driver, "override": "pcieport"}})',
        says="it states driver_override 'pcieport' for",
    ),
    Forgery(
        name="a record's values have other types",
        script='record({gpu: {"driver": ["vfio-pci"], "override": 1e99}})',
        says="but the name of a driver was expected",
    ),
    Forgery(
        name="a record's name contains no PCI address",
        script='put("drivers-...json", "{}"); put("quarantine-$(reboot).json", "{}")',
        says="its name has no PCI address",
    ),
    # Files that hang, fill or lead elsewhere.
    _of_record("a FIFO as a record", 'os.mkfifo(pool / f"drivers-{gpu}.json")', "it is a FIFO"),
    _of_record(
        "a link to a file of root's as a record",
        '(pool / f"drivers-{gpu}.json").symlink_to(secret)',
        "it is a symbolic link",
    ),
    _of_record("a folder as a record", '(pool / f"drivers-{gpu}.json").mkdir()', "it is a folder"),
    _of_record(
        "a socket as a record",
        'os.mknod(pool / f"drivers-{gpu}.json", stat.S_IFSOCK | 0o640)',
        "it is a socket",
    ),
    _of_record(
        "a second name of another file as a record",
        'put("mine", "{}"); (pool / f"drivers-{gpu}.json").hardlink_to(pool / "mine")',
        "it has another name",
    ),
    _of_record(
        "a record of a tebibyte",
        'record({}); os.truncate(pool / f"drivers-{gpu}.json", 1 << 40)',
        "more than 64 KiB",
    ),
    _of_record(
        "a record of a mebibyte",
        'record({gpu: good()}, padding="x" * (1 << 20))',
        "more than 64 KiB",
    ),
    _of_record("a record that is not UTF-8", 'put(f"drivers-{gpu}.json", b"\\xff\\xfe{}")'),
    _of_record("an empty record", 'put(f"drivers-{gpu}.json", "")'),
    _of_record(
        "a record of ten thousand lists in each other",
        'put(f"drivers-{gpu}.json", "[" * 10_000 + "]" * 10_000)',
    ),
    _of_record(
        "a record with a number of fifty thousand digits",
        'put(f"drivers-{gpu}.json", \'{"boot_id": \' + "9" * 50_000 + "}")',
    ),
    Forgery(
        name="a quarantine is a FIFO",
        script='os.mkfifo(pool / f"quarantine-{gpu}.json")',
        says="it is a FIFO",
    ),
    Forgery(
        name="a quarantine claims to be from root, and contains escape sequences",
        script="""
reason = "\\x1b]0;owned\\x07\\x1b[2J smells.\\nGPU is fine"
put(f"quarantine-{gpu}.json", json.dumps({"reason": reason, "since": "today", "user": "root"}))
""",
        says="\\x1b]0;owned\\x07\\x1b[2J smells. GPU is fine",
    ),
    # Leases.
    Forgery(
        name="a lease is a FIFO",
        script='os.mkfifo(pool / "000000001-deadbeef")',
        says="it is a FIFO",
    ),
    Forgery(
        name="a lease is a link to a file of root",
        script='(pool / "000000001-deadbeef").symlink_to(secret)',
        says="it is a symbolic link",
    ),
    Forgery(
        name="a lease is a folder",
        script='(pool / "000000001-deadbeef").mkdir()',
        says="it is a folder",
    ),
    Forgery(
        name="a lease is a hard link to another file",
        script='put("mine", "{}"); (pool / "000000001-deadbeef").hardlink_to(pool / "mine")',
        says="it has another name",
    ),
    Forgery(
        name="a locked lease has the size of a tebibyte",
        script='hold("000000001-deadbeef", lease()); os.truncate(pool / "000000001-deadbeef", 1 << 40)',
        says="more than 64 KiB",
    ),
    Forgery(
        name="a lease has the highest possible number",
        script='record({gpu: good("../x")}); os.mkfifo(pool / "999999999999999-deadbeef")',
        says="it is a FIFO",
    ),
    Forgery(
        name="a locked lease is not JSON",
        script='hold("000000001-deadbeef", b"\\xff not json \\x1b]0;owned\\x07")',
        says="can't be parsed",
    ),
    Forgery(
        name="a locked lease has ten thousand nested lists",
        script='hold("000000001-deadbeef", "[" * 10_000 + "]" * 10_000)',
        says="can't be parsed",
    ),
    Forgery(
        name="a lease whose holder's name clears the screen",
        script='hold("000000001-deadbeef", lease(who="x\\x1b[2J"))',
        says="but one printable line was expected",
    ),
    Forgery(
        name="a lease names a path as a GPU",
        script='hold("000000001-deadbeef", lease(taken=["../../etc"]))',
        says="'../../etc', but a PCI address was expected",
    ),
    Forgery(
        name="a lease has the process id -1",
        script='hold("000000001-deadbeef", lease(process=-1))',
        says="can't be parsed",
    ),
    Forgery(
        name="a user locks the folder",
        script="""
folder = os.open(pool, os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
""",
        says="another process holds it",
    ),
)
