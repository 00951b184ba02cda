"""A folder of checkpoints is written to by one run at a time."""

import errno
import sys
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from smlightning.errors import UserError
from smlightning.files import ensure_dir

SECONDS = 15  # loader workers of a process that was killed live on for 5 s, and keep its lock


def lock(directory: Path) -> FileLock:
    """Lock the folder as long as this process lives; a warning says where files cannot be locked.

    Raises:
        UserError: another run has it, or nothing can be written there.
    """
    file_lock = FileLock(ensure_dir(directory).absolute() / ".lock", is_singleton=True)
    try:
        file_lock.acquire(timeout=SECONDS)
    except Timeout:
        raise UserError(f"Another run is writing to {directory}", _cure(file_lock)) from None
    except (NotImplementedError, OSError) as error:  # the first is filelock 3's, in older images
        if isinstance(error, OSError) and error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"Nothing can be written to {directory} ({error.strerror})",
                "name another --output_dir",
            ) from None
        print(
            f"warning: files cannot be locked in {directory}; let no other run write there",
            file=sys.stderr,
        )
    return file_lock


def _cure(file_lock: FileLock) -> str:
    """Without flock, filelock 4 leaves a file as a mark, which a killed process of another host
    does not remove.
    """
    is_mark = isinstance(file_lock, SoftFileLock)
    remove = f" (or remove {file_lock.lock_file}, if there is none)" if is_mark else ""
    return f"wait for its end{remove}, or name another --output_dir"
