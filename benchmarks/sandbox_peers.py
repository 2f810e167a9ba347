"""Debian's bubblewrap, firejail, gVisor and podman, unpacked beside this system and seen by one command alone.

    python benchmarks/sandbox_peers.py FOLDER fetch
    python benchmarks/sandbox_peers.py FOLDER run python benchmarks/sandbox.py --rounds 20 --out docs/results/sandbox.md

``fetch`` downloads the packages with apt-get and unpacks them into FOLDER; nothing is installed. ``run``, as root,
starts the command in a mount namespace in which the unpacked files lie over /etc, /usr and /var, what is written there
and to /run is memory, and the second version of cgroups, which crun refuses beside the first, is out of sight.
"""

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "bubblewrap", "busybox-static", "conmon", "containernetworking-plugins", "crun", "firejail",
    "golang-github-containers-common", "golang-github-containers-image", "libassuan0", "libgpgme11", "libsubid4",
    "libyajl2", "podman", "runsc",
)  # fmt: skip
ROOT = Path("/run/peers")
"""Where the container's files are in that namespace."""
_NEW_MOUNTS = 0x00020000
_PRIVATE = 1 << 18 | 16384
_DETACH = 2


def fetch(folder: Path) -> None:
    """Download and unpack."""
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=packages, check=True)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)


def enter(folder: Path) -> None:
    """Leave the mount namespace for one in which the packages are installed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(kind: str, target: str, options: str = "", flags: int = 0) -> None:
        given = [kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()]
        if libc.mount(*given):
            raise OSError(ctypes.get_errno(), f"mount {kind} on {target}")

    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare; run it as root")
    mount("none", "/", flags=_PRIVATE)
    mount("tmpfs", "/run")
    for name in ("etc", "usr", "var"):
        below = folder / "root" / name
        below.mkdir(exist_ok=True)
        for part in ("upper", "work"):
            Path(f"/run/over/{name}/{part}").mkdir(parents=True)
        over = f"upperdir=/run/over/{name}/upper,workdir=/run/over/{name}/work"
        mount("overlay", f"/{name}", f"lowerdir={below}:/{name},{over}")
    libc.umount2(b"/sys/fs/cgroup/unified", _DETACH)
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
        (ROOT / name).mkdir(parents=True)
    busybox = next(path for path in (folder / "root/bin/busybox", folder / "root/usr/bin/busybox") if path.exists())
    (ROOT / "bin/busybox").write_bytes(busybox.read_bytes())
    (ROOT / "bin/busybox").chmod(0o755)
    (ROOT / "bin/sh").symlink_to("busybox")


def main() -> None:
    """Fetch, or enter and become the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("fetch", "run"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.what == "fetch":
        fetch(folder)
        return
    if not given.command:
        sys.exit("sandbox_peers.py FOLDER run: name the command to run")
    enter(folder)
    os.execvp(given.command[0], given.command)


if __name__ == "__main__":
    main()
