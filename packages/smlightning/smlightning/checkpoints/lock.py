"""A folder of checkpoints is written to by one run at a time."""

import errno
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from smlightning.errors import UserError
from smlightning.files import ensure_dir

SECONDS = 15  # loader workers of a process that was killed keep its lock for 5 s


def lock(directory: Path) -> FileLock:
    """Lock the folder as long as this process lives; warn if its files cannot be locked.

    Raises:
        UserError: another run has locked it, or it cannot be written to.
    """
    file_lock = FileLock(ensure_dir(directory).absolute() / ".lock", is_singleton=True)
    try:
        file_lock.acquire(timeout=SECONDS)
    except Timeout:
        # Without flock, filelock writes process and host into the file as a mark, which a killed
        # process of another host does not remove.
        is_mark = Path(file_lock.lock_file).stat().st_size > 0
        remove = f" (if there is none, remove {file_lock.lock_file})" if is_mark else ""
        raise UserError(
            f"Another run is writing to {directory}",
            f"wait for its end{remove}, or set another --output_dir",
        ) from None
    except (NotImplementedError, OSError) as error:  # the first is filelock 3's, in older images
        if isinstance(error, OSError) and error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"{directory} cannot be written to ({error.strerror})", "set another --output_dir"
            ) from None
        print(
            f"warning: files cannot be locked in {directory}; let no other run write there",
            file=sys.stderr,
        )
    return file_lock
