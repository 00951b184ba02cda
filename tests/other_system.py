"""Run train.py or a command as on another system: `python other_system.py win32 train OPTIONS`.

On each, `linux` too, loader workers are spawned.

What Windows or macOS lacks is removed before the packages are imported; the libraries are imported
before, since theirs is another build there. Files behave as on Windows: one that is open or mapped
into memory cannot be removed or replaced, and its name has no characters that Windows forbids.
"""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

WINDOWS_LACKS = {
    "modules": "fcntl resource pwd grp termios pty tty curses readline syslog",
    "os": """fork forkpty register_at_fork killpg getpgid setsid getuid geteuid getgid uname
        posix_fallocate mkfifo sync sched_getaffinity sched_setaffinity wait4 getloadavg""",
    "signal": """SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGHUP SIGALRM SIGQUIT SIGBUS SIGPIPE SIGSTOP
        SIGCONT pthread_sigmask pthread_kill sigwait sigwaitinfo sigtimedwait alarm setitimer""",
}
MACOS_LACKS = {
    "modules": "",
    "os": "sched_getaffinity sched_setaffinity posix_fallocate fdatasync memfd_create",
    "signal": "sigwaitinfo sigtimedwait",
}
LACKS = {"win32": WINDOWS_LACKS, "darwin": MACOS_LACKS, "linux": dict.fromkeys(MACOS_LACKS, "")}
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[ .]$')
LIBRARIES = """
    asyncio boto3 datasets filelock jsonargparse matplotlib.pyplot multiprocessing.popen_spawn_posix
    pandas pydantic pytorch_lightning rich.progress safetensors.torch torch.utils.tensorboard
    torch._dynamo torch.distributed.tensor torch.distributed.fsdp torchmetrics
""".split()  # noqa: SIM905


def become(system: str) -> None:
    """Remove what the system lacks from this process."""
    import importlib
    import multiprocessing
    from multiprocessing import queues, resource_tracker, synchronize
    from types import SimpleNamespace

    from torch.utils.data._utils import signal_handling

    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Workers are spawned as Linux does it.
    resource_tracker.ensure_running()
    queues.sys = synchronize.sys = SimpleNamespace(  # type: ignore
        platform=sys.platform, maxsize=sys.maxsize
    )
    signal_handling.IS_WINDOWS = system == "win32"
    lacks = LACKS[system]
    for name in lacks["modules"].split():
        sys.modules[name] = None  # type: ignore[assignment]
    for module, key in ((os, "os"), (signal, "signal")):
        for name in lacks[key].split():
            if hasattr(module, name):
                delattr(module, name)
    multiprocessing.set_start_method("spawn")
    if system == "win32":
        sys.addaudithook(audit)
    sys.platform = system


def audit(event: str, args: tuple[Any, ...]) -> None:
    """Raise the errors of Windows' file system."""
    if event in ("os.remove", "os.rename"):
        for path in args[: 1 if event == "os.remove" else 2]:
            name = str(Path(os.fsdecode(path)).resolve())
            if name in in_use():
                raise PermissionError(13, "another process uses the file", name)
    is_created = event == "open" and isinstance(args[0], str) and args[2] & os.O_CREAT
    if is_created and FORBIDDEN.search(Path(args[0]).name):
        raise OSError(22, "Invalid argument", args[0])


def in_use() -> set[str]:
    """The files that this process has open or mapped."""
    files = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this folder
            files.add(str(descriptor.readlink()))
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return files | {line.split(maxsplit=5)[-1] for line in lines}


if __name__ == "__main__":
    system, program, *words = sys.argv[1:]
    become(system)
    if program == "train":
        import train
        from smlightning.entry import main

        sys.argv = ["train.py", *words]
        sys.exit(main(train.train, train.Options, train.__doc__))
    from smlightning_sagemaker.__main__ import main as command

    sys.exit(command([program, *words]))
