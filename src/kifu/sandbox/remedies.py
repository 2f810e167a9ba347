"""What to do about a machine that refuses a step of the sandbox."""

import errno

_OTHER = "or choose another back-end (`bwrap`, a container)"
_NO_USER_NAMESPACES = (
    "Unprivileged user namespaces are switched off here. On Ubuntu 23.10 and later allow them for this interpreter by "
    "an AppArmor profile with the line `userns,`, or set kernel.apparmor_restrict_unprivileged_userns=0; on Debian set "
    f"kernel.unprivileged_userns_clone=1; in a container allow clone and unshare in its seccomp profile; {_OTHER}."
)
_REMEDIES = {
    ("user namespace", errno.ENOSPC): f"Raise user.max_user_namespaces above 0, {_OTHER}.",
    ("user namespace", errno.EPERM): _NO_USER_NAMESPACES,
    ("user namespace", errno.EACCES): _NO_USER_NAMESPACES,
    ("user namespace", errno.ENOSYS): f"The kernel has no user namespaces; boot one that has, {_OTHER}.",
    ("user namespace", errno.EINVAL): f"The kernel has no user namespaces; boot one that has, {_OTHER}.",
    ("proc", errno.EPERM): "/proc is masked here, as containers do it. Start the container with "
    f"`--security-opt systempaths=unconfined`, {_OTHER}.",
    ("interpreter", errno.EACCES): "This Python cannot be run by the user the sandbox starts as; give another one by "
    "`interpreter=`, e.g. /usr/bin/python3.",
    ("interpreter", errno.ENOENT): "Install Python 3.11 or later, or give its path by `interpreter=`.",
}
_BY_STEP = {
    "user namespace": _NO_USER_NAMESPACES,
    "namespaces": f"Raise the user.max_*_namespaces limits, {_OTHER}.",
    "overlay": "Overlays with user attributes on a memory file system need Linux 6.6 or later and the overlay module "
    f"loaded; boot such a kernel, {_OTHER}.",
    "seccomp": f"The kernel has no seccomp filters; boot one built with CONFIG_SECCOMP_FILTER, {_OTHER}.",
    "platform": "Namespaces are Linux's. Run kifu in a Linux virtual machine or container on this computer.",
    "architecture": "There is no table of system calls for this processor; x86-64 and 64-bit ARM have one.",
}


def remedy_of(step: str, number: int | None) -> str:
    """A sentence or two; empty when nothing is known about the step."""
    return _REMEDIES.get((step, number or 0), _BY_STEP.get(step, ""))
