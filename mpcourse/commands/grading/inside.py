"""What a learner's process sees on Linux: one program, started in a place made for it.

It gets namespaces of its own: a root in which there are the system's programs and Python,
read-only, its copy of the course and room for files in memory; no other process, no network but the
way back to itself, no rights. All that it starts ends with it. Standard library only; run by path,
so that nothing else is imported. Source: `man namespaces`, `man mount_setattr`, `man pivot_root`,
`man unshare`, `man setpriv`, `man netdevice`.
"""

import ctypes
import json
import os
import socket
import struct
import sys

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/devices/system")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
DEVICES = ("null", "zero", "full", "random", "urandom")
HOME = "/home/learner/clone"
WRITABLE = ("/tmp", "/dev/shm", "/home/learner", f"{HOME}/my_notebooks")
NOSUID, NODEV, NOEXEC, BIND, RECURSIVE, DETACH = 2, 4, 8, 4096, 16384, 2
MOUNT_SETATTR, READ_ONLY, ALL_BELOW, NO_FOLDER = 442, 1 | 2, 0x8000, -100
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41
ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
OTHERS_NEW = ("--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child")
NO_RIGHTS = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*(os.fsencode(a) if isinstance(a, str) else a for a in arguments)) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def start(plan: object) -> list[str]:
    """The command that does `main` as the first process of new namespaces."""
    user = ["--map-root-user"] if os.geteuid() else []
    program = [sys.executable, "-I", "-S", __file__, json.dumps(plan)]
    return [*ENDS_WITH_PARENT, "unshare", *user, *OTHERS_NEW, *program]


def lay_out(room: str, shown: dict, files_gib: float) -> None:
    """Make a root in memory with what is to be seen, and leave the machine's own."""
    os.umask(0o022)  # whoever looks at it later is a stranger here
    size = f"mode=755,size={int(files_gib * 2**30)}"
    call("mount", "tmpfs", room, "tmpfs", NOSUID | NODEV, size)
    for path in SYSTEM + SETTINGS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), room + path)
        elif os.path.exists(path):
            show(path, room + path)
    for inside, outside in shown.items():
        show(outside, room + inside)
    for name in DEVICES:
        show(f"/dev/{name}", f"{room}/dev/{name}", writable=True)
    for path in (*WRITABLE, "/proc"):
        os.makedirs(room + path, exist_ok=True)
        os.chmod(room + path, 0o1777)
    with open(f"{room}/etc/hosts", "w") as file:
        file.write("127.0.0.1 localhost\n")
    call("mount", "proc", f"{room}/proc", "proc", NOSUID | NODEV | NOEXEC, None)
    os.chdir(room)
    call("pivot_root", ".", ".")
    call("umount2", ".", DETACH)
    os.chdir("/")


def show(outside: str, inside: str, *, writable: bool = False) -> None:
    """Let a file or folder be seen at a place in the new root, where there is none yet."""
    if os.path.exists(inside):  # lies in one that is shown already
        return
    os.makedirs(os.path.dirname(inside), exist_ok=True)
    if os.path.isdir(outside):
        os.mkdir(inside)
    else:
        open(inside, "x").close()
    call("mount", outside, inside, None, BIND | RECURSIVE, None)
    if not writable:
        attributes = struct.pack("QQQQ", READ_ONLY, 0, 0, 0)
        call("syscall", MOUNT_SETATTR, NO_FOLDER, inside, ALL_BELOW, attributes, len(attributes))


def main() -> None:
    """Become the program that is named, in the place that is described, without any rights."""
    room, shown, files_gib, command, stranger = json.loads(sys.argv[1])
    lay_out(room, shown, files_gib)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:  # the way back to itself
        flags = struct.pack("16sH22x", b"lo", UP_AND_RUNNING)
        __import__("fcntl").ioctl(handle, SET_FLAGS, flags)
    socket.sethostname("localhost")  # the machine's own name leads to an address that is gone
    os.chdir(f"{HOME}/my_notebooks")
    user = [f"--reuid={stranger}", f"--regid={stranger}", "--clear-groups"] if stranger else []
    os.execvp("setpriv", [*ENDS_WITH_PARENT, *user, *NO_RIGHTS, *command])


if __name__ == "__main__":
    main()
